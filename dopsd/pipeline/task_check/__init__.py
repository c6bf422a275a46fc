"""`dopsd task`: what a task of your own looks like to a model, before anything trains on it."""
