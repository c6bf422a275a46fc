"""AR-style OPSD: a reference solution in the teacher's prompt."""
