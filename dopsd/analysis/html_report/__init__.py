"""Reports as one HTML file each, which loads nothing from a network."""
