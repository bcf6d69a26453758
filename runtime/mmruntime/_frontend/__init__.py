"""What programs call inside a step. It computes as plain JAX does and leaves marks in the trace.

`task_call` is `task`, `constraint` the sharding constraints, `loops` the microbatches, `stage_scan` the layers of a
scan. What a loss changes of the state of Python is refused in `python_state`. Steps are compiled by `_step.mjit`.
`init` is MultiMesh's start, `nnx_objects` finds objects of Flax among arguments, `labels` says what messages call a
function.
"""
