"""From a function to a `Step`: flat equations with their tasks, without mutable arrays, microbatch loops opened.

`trace` is the pass; `assign_tasks` says which equations belong to which task, `own_meshes` what constraints over the
program's own meshes mean. Mutable arrays go in `refs`, tasks in a scan's body in `scan_tasks`.
"""
