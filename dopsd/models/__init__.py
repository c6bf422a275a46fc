"""Base models: files, weights, adapters, architectures."""
