"""Sampling: denoising, batches and waves, collection of rollouts."""
