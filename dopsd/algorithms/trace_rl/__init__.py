"""TraceRL: policy gradient on the steps that the sampler made."""
