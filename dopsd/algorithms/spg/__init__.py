"""SPG: policy gradient between a lower and an upper bound of the likelihood."""
