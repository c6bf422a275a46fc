"""d3LLM: off-policy self-distillation along recorded trajectories."""
