"""Codemods for microbatches: of a gradient, and of a loop that accumulates gradients."""
