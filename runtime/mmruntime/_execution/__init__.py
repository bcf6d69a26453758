"""Compiling the programs of a step, moving arrays, running instructions.

A list of instructions comes in. `compile` compiles, and says what is overwritten, `run` issues them,
`run_across` those of one of several processes; arrays move in `transfers`. Runners around these check values
(`checked_runner`), premises (`premise_runner`), or cut stacks (`stacked_runner`). How far programs and processes may be
ahead is `throttle` and `back_pressure`; executables are kept on disk by `program_cache`; the line that made a nan is
found by `find_invalid`.
"""
