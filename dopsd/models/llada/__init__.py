"""LLaDA as a native transformers model; importing this package registers model_type "llada"."""

from dopsd.models.llada.architecture import LladaConfig, LladaForMaskedLM

__all__ = ["LladaConfig", "LladaForMaskedLM"]
