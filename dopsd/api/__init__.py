"""The functions of `import dopsd`: a thin layer over the packages below, described in
docs/library.md.
"""
