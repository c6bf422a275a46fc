"""Answer requests with a published checkpoint."""
