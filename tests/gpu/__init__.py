"""A pretended CUDA device on torch's CPU build: docs/pretended-gpu.md says what it models."""
