"""Answer infilling: the teacher sees the gold answer where the student's own one will stand."""
