"""Processes of one run: process groups, launching, forwards in step."""
