"""Code that algorithms share."""

# updates of a collect that kept nothing, without skip_empty; rewards without special tokens;
# solutions in the layout of the prompt
RECIPE = 2
