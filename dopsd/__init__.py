"""dopsd: on-policy self-distillation for diffusion language models."""
