"""Tasks, meshes, submeshes, logical axes, switches, marks and the registry of tasks: what all other folders speak of.

The user's mesh and its errors are `multimesh`, one on fewer devices `one_device`, the mesh of a task `mesh`. What a
logical axis becomes on the mesh is `logical_axes`; a task is `task`, with its submesh in `submesh`; a switch that is
part of the key of a plan, `switches`; warnings are at a line of the user's program by `warn`, and what a first call is
doing is shown by `progress`.
"""
