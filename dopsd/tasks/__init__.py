"""Tasks: a folder each, with data, prompt and scorer."""
