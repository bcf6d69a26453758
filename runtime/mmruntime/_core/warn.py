"""Warnings at the line of the user's program."""

from __future__ import annotations

import sys
import warnings

# Frames between the user's call and ours.
_BETWEEN = frozenset(("mmruntime", "jax", "flax", "contextlib", "functools"))


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line that has called us, by way of JAX or Flax too: Python shows it, and filters go by its module."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _BETWEEN:
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=level)
