"""VRPO: preferences with the bound's variance reduced."""
