"""Meshes in context, what runs in them, and which sites of a region are rewritten together.

A module comes in, regions go out, each with the style of its edits or the reason why it stays. `mesh_contexts` finds
contexts, `mesh_extents` the code that runs in them, `mesh_members` the sites that depend on them, `mesh_regions` what
is rewritten together and in which of three styles; `plain_sites` says what a site calls its mesh by itself, and which
contexts go then; `plain_constraints` is about constraints. Whether code is out of view that such an edit would change
is `code_in_view`; what only `xmap` has is `xmap_chains`.
"""
