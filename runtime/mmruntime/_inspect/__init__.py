"""Reports and timelines of a compiled step.

A step comes in, values go out. A figure that is known before a run is computed in `report` and printed by
`report_text`, whose `tables` has the columns of `explain()`; memory is `memory`. One that is measured is of the
`Measurement` of `timeline`, which `measure` takes, `simulate_step` foretells, and `mmrewrite.plan.step_trace` prints;
it becomes a picture by `timeline_page`, which `schedules._drawing` draws. What times mean is `costs`, what moves within
a submesh `collectives`, and why an input lies where it does `input_reasons`.
"""
