"""Commands that the tool runs as processes of their own, because it never imports JAX itself.

Names of functions come in as arguments, one JSON document or a folder of arrays goes out. `verify` calls a function,
with the seeds of random numbers; `compare` compares two runs; `plan` traces a step, `suggest` says what its layers
cost, and `calibrate` times one of them. Arguments and errors of all are read and worded in `entry_point`; `disturb`
measures how far rounding moves a result.
"""
