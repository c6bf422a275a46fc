"""Finished runs side by side: tables and figures."""
