"""One checkpoint: evaluate, export, upload."""
