"""JustGRPO: policy gradient on rollouts from left to right."""

RECIPE = 2  # noise in float32 also with the preset reference; gradients clipped at 1.0
