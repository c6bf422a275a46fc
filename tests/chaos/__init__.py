"""`make chaos`: faults against copies of this checkout, judged by an undisturbed run's bytes."""
