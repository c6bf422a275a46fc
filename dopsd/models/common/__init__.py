"""What several architectures share; not an architecture itself."""
