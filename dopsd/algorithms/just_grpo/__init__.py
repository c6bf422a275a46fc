"""JustGRPO: policy gradient on rollouts from left to right."""
