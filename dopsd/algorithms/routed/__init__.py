"""Routed: policy gradient on recorded states, and a teacher with a verified future (own)."""
