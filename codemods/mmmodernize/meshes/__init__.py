"""Meshes in context, what runs in them, and which sites of a region are rewritten together.

`mesh_contexts` finds contexts, `mesh_extents` the code that runs in them, `mesh_regions` what is rewritten together and
in which of three styles.
"""
