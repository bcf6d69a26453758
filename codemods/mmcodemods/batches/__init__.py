"""Codemods for microbatches."""
