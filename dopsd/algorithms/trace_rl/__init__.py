"""TraceRL: policy gradient on the steps that the sampler made."""

RECIPE = 2  # AdamW's betas and weight decay are the published ones
