"""What will run where: placement read from the source or traced, as sections and as a page.

Rewritten sources come in, a `Plan` of sections goes out. `read_placement` reads; `stages` assumes what the source
leaves open, says so, and simulates with the default costs of `mmruntime.schedules.simulate`; `step_trace` asks a
process with JAX; whether a step fits its devices is `fit`. `plan` puts the sections together; what editors are told of
a line is in `line_facts` and `traced_bytes`.
"""
