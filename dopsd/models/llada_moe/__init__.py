"""LLaDA-MoE: Qwen3's bidirectional attention and a mixture of experts, model_type "llada_moe"."""
