"""Rewrite one-device JAX programs, from hints, into multi-device pipeline programs."""

__version__ = "0.1.0"
