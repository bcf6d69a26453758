"""Sequence slices: a microbatch's loop body cut along the sequence, exactly."""
