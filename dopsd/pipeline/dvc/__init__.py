"""`dopsd repro` and what keeps DVC's workspace whole and small."""
