"""Meshes in context, what runs in them, and which sites of a region are rewritten together."""
