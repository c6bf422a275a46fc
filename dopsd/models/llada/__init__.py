"""LLaDA as a native transformers model; importing this package registers model_type "llada"."""

from dopsd.models.llada import modeling

__all__ = ["modeling"]
