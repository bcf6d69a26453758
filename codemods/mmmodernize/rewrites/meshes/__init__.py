"""Codemods for meshes, and for functions that run on them."""
