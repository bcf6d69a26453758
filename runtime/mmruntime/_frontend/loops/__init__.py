"""Microbatch loops: a function of the batch becomes a marked loop over pieces of it, whose results are put together.

`microbatch`, `microbatch_loop` and `microbatch_scan` are what programs call. The other files say which keys its
iterations get (`random_keys`), whether it computes what one iteration on the whole batch does (`exact_microbatch` for
functions, `whole_batch` for scans), and what it does to objects and batches (`object_state`, `batch_changes`);
`_jaxpr/carry` says what is a sum.
"""
