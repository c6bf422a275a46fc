"""MATH500: competition mathematics."""
