"""A task of your own, defined in params.yaml without Python."""
