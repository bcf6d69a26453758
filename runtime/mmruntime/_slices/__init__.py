"""Sequence slices: a microbatch's loop body cut along the sequence, exactly.

In comes a step whose loops ask for slices, out one with a body for each slice (`body.slice_loops`). How a slice
computes a primitive is its rule in `rules`; which columns a mask hides, `mask_proof` proves from the program, with the
masks that `constants` computes. What that takes for granted of numbers is a `Check`: `body` emits it, `ranges` bounds
what no slice computes, and `_execution/premise_runner` raises what it finds.
"""
