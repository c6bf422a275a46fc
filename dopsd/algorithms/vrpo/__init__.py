"""VRPO: variance-reduced preference optimisation."""
