"""Evaluate adapters, and score generations from files."""
