"""Codemods for meshes and the steps that are compiled for them."""
