"""Reports as one HTML file each, which loads nothing from a network."""

from __future__ import annotations
