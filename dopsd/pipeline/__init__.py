"""Stages of the pipeline, and the commands around them."""
