"""Dream-7B and DiffuCoder: Qwen2.5 made bidirectional, with shifted logits; model_type "Dream"."""
