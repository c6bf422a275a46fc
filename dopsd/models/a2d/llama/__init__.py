"""Llama made a diffusion model, model_type "a2d-llama"."""
