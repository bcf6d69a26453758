"""Compiled steps: `mjit`, `parallelize`, and the plan of passes.

A function and the types of its arguments come in, a runner goes out. `mjit` takes the options of users and checks them,
`mesh_function` is what it returns; initialisers are run by `initializer`. `plan` calls the passes on a `step_state`,
whose programs and layouts are made when they are read; `mesh_function` keeps a plan for each `signature`; what
processes compare before they run a step is in `several_processes`. `gather` gives code outside of steps a copy,
`outside_of_steps` words JAX's errors there; `ahead_of_time` is `lower` and `compile`.
"""
