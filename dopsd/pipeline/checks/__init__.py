"""Checks of `dopsd doctor`."""
