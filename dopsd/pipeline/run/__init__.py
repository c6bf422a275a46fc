"""`dopsd run`: what was asked for, the view, and the run without Prefect."""
