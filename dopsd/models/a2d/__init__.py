"""Autoregressive decoders made diffusion models: one folder for each, and how to make one."""
