"""Register LLaDA with transformers: this import is enough to load one."""

from dopsd.models.llada.configuration import LladaConfig
from dopsd.models.llada.modeling import LladaForMaskedLM

__all__ = ["LladaConfig", "LladaForMaskedLM"]
