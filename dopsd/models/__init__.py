"""Language models: policy protocols, weights and their files, adapters, architectures."""
