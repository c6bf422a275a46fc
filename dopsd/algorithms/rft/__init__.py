"""Rejection fine-tuning on kept rollouts."""
