"""Proofs that a function of microbatches gives, put together, what it gives for the whole batch.

Two traces come in, of one microbatch and of the batch; how the results are put together goes out, or the line where
they differ. `prove` walks the equations, `lattice` has the abstract values, `rules` what a primitive makes of them.
`split` then makes two functions: one that runs once, and one for each microbatch. What users are told is `messages`.
"""
