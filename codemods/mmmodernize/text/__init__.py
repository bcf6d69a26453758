"""Code and paths in strings."""
