"""Algorithms: a folder each; copy one to add another."""
