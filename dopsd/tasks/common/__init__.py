"""What tasks share."""
