"""LLaDA2.0: a mixture of experts with block-causal attention, model_type "llada2_moe"."""
