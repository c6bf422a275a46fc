"""LLaDA as a native transformers model."""
