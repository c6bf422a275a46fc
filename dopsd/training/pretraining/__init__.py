"""Pretraining of the embedded base, and the record of what it was made from."""
