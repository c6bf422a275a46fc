"""`dopsd doctor`: checks of this machine, its card and its servers."""
