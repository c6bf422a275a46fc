"""Processes of one run: groups, launching, forwards made together."""
