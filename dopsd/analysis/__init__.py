"""Compare finished runs in tables and figures."""
