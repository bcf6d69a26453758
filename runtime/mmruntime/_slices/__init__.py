"""Sequence slices: a microbatch's loop body cut along the sequence, exactly.

A step comes in, one copy of the body for each slice goes out (`body`). How a slice of a primitive is computed is its
rule in `rules`; when a mask hides later positions, `hidden`.
"""
