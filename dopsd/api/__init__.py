"""Functions of `import dopsd`, thin over the packages below; docs/library.md describes them."""
