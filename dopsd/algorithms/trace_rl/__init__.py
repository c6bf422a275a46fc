"""TraceRL: policy gradient on the steps that the sampler made."""

# AdamW's betas and weight decay are the published ones; no warm-up; at most 8 updates a pass
RECIPE = 2
