"""A rewritten copy of the sources, and processes that run it."""
