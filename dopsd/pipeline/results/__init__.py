"""Finished runs side by side: comparisons, ablations and reports."""
