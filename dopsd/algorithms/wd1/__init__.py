"""wd1: weighted log-likelihood, without a probability ratio."""

RECIPE = 2  # 12 updates a collect
