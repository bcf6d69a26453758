"""Reports and timelines of a compiled step.

A step comes in, values go out. A new figure is computed in `report` and printed by `report_text`; memory is `memory`,
times are measured by `measure` and simulated by `simulate_step`, pictures are drawn by `timeline_page`.
"""
