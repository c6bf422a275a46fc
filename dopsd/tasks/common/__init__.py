"""Code that tasks share."""
