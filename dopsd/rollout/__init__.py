"""Sampling: denoising, batches and waves, collecting."""
