"""Tasks: one folder each, with data, prompt and scorer."""
