"""Calling conventions: what callers pass to a step, and get, where it is not `jax.jit` that compiled it before."""
