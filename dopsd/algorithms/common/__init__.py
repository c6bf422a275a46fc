"""Code that algorithms share."""

RECIPE = 2  # updates of a collect that kept nothing, without skip_empty
