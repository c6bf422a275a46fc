"""Stages and the commands around them."""
