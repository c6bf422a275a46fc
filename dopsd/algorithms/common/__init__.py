"""Code that algorithms share."""
