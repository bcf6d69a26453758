"""Meshes in context, what runs in them, and which sites of a region are rewritten together.

A module comes in, regions go out, each with the style of its edits or the reason why it stays. `mesh_contexts` finds
contexts, `mesh_extents` the code that runs in them, `mesh_members` the sites that depend on them, `mesh_regions` what
is rewritten together and in which of three styles; `plain_sites` and `plain_constraints` say which sites of the third
need no context. Whether code is out of view that such an edit would change is `code_in_view`; what only `xmap` has is
`xmap_chains`.
"""
