"""Compiled steps: how they are compiled, their loss and gradient, and what they are given.

A kind of jit or pmap is a record of `mmrewrite.source.jit_kinds`; `compilers` says which an expression may be,
`jit_calls` knows the forms of its calls, and what callers pass is a convention of `mmruntime._calling`. A gradient is
found by `gradients`, the function that is differentiated by `losses`, its batch by `batch_arguments`. What a loss
closes over is `closures`, what of a step is no data, `step_data`, and what plain `jax.jit` compiles, `plain_steps`.
"""
