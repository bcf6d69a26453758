"""Calling conventions: what callers pass to a step, and get, where it is not `jax.jit` that compiled it before.

A convention makes of such a step a function of arrays. `choose` has the functions that compile and picks it,
`convention` is what each implements; a new kind of jit or pmap is a file beside them, and a record of
`mmrewrite.source.jit_kinds`. Shardings that users give are `layouts`.
"""
