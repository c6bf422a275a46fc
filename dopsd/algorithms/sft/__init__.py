"""Supervised fine-tuning by masked diffusion."""
