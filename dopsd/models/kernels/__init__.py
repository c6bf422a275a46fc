"""Element-wise work of a transformer block, in plain torch or in fused kernels for a GPU."""
