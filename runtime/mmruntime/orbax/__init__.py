"""Checkpoints by Orbax over several processes: each array is written by those that have it."""

from __future__ import annotations

from mmruntime.orbax._array_handler import register as register

__all__ = ["register"]
