"""Codemods for Flax."""
