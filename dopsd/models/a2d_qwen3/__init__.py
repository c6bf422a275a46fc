"""Tiny-A2D: Qwen3 made bidirectional, model_type "a2d-qwen3"."""
