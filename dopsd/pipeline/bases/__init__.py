"""Bases: what one is, whether settings fit it, which there are."""
