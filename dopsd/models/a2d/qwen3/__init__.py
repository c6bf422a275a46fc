"""Qwen3 made a diffusion model, model_type "a2d-qwen3"."""
