"""`make chaos`: faults of every kind against copies of this checkout, each judged by the bytes of
an undisturbed run.
"""
