"""The layout of every value at a border: mesh axes for logical names, then Shardy's propagation through programs.

`input_layouts` says what users and arguments ask for, `shard` what follows for programs and for state, such as that of
an optimizer, and `propagate` asks Shardy. `dimension_classes` tells tools what a mesh axis may cut where nothing has a
name. Logical names become mesh axes in `mesh_axes`; parameters that an axis cuts are gathered by `all_gather`; axes
that cut nothing are told by `idle_axes`.
"""
