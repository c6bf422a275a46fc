"""Command line: one file for each group of commands."""
