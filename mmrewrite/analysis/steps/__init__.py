"""Compiled steps: how they are compiled, their loss and gradient, and what they are given."""
