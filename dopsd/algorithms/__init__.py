"""Algorithms: one folder each; copy one to add another."""
