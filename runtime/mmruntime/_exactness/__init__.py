"""Proofs that a function of microbatches gives, put together, what it gives for the whole batch."""
