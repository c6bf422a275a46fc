"""JustGRPO: policy gradient on rollouts from left to right."""

# noise in float32 also with the preset reference; gradients clipped at 1.0; no warm-up
RECIPE = 2
