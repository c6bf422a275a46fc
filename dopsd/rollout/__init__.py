"""Sampling: denoising, batches and waves, collection of rollouts."""

RECIPE = 2  # bfloat16 noise has the distribution of torch.rand
