"""Chains: operations on a small number, one after the other, by their remainders."""
