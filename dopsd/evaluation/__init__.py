"""Evaluating adapters, and scoring generations on file."""
