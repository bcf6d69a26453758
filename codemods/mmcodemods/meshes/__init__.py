"""Codemods for meshes and the steps that are compiled for them.

`declare_mesh` writes the mesh, `compile_for_mesh` the `mjit` of a step, `parallelize_step` one with its initialiser.
"""
