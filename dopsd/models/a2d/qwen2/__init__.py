"""Qwen2 made a diffusion model, model_type "a2d-qwen2"."""
