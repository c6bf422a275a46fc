"""Temporal self-distillation: later states of a rollout teach its earlier ones."""

RECIPE = 1
