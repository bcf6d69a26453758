"""A rewritten copy of a package, and the processes that run it."""
