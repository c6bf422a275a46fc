"""SmolLM2 (a Llama decoder) made bidirectional, with shifted logits; model_type "a2d-llama"."""
