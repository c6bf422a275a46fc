"""params.yaml as one checked object."""
