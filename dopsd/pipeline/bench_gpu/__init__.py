"""`dopsd bench-gpu`: measure a GPU at LLaDA-8B's shape, and compare it with the model of a GPU."""
