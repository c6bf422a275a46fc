"""wd1: weighted log-likelihood, without a probability ratio."""
