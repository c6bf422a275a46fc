"""SDAR: Qwen3 with block-causal attention, model_type "sdar"."""
