"""Routed: policy gradient on recorded states, and a teacher with a verified future (own)."""

RECIPE = 2  # no warm-up, and at most 8 updates a pass, as in TraceRL
