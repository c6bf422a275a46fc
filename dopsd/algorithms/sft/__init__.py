"""Supervised fine-tuning by masked diffusion."""

RECIPE = 2  # d1's optimizer: linear decay without warm-up, betas 0.9 and 0.999, clip 1.0
