"""Rename `jax.host_count` and `jax.host_id` to `jax.process_count` and `jax.process_index`, their names since 2021.

    jax.host_count(), jax.host_id()
    ->  jax.process_count(), jax.process_index()

To check: nothing; they are the same functions.

Refused: nothing; code that chooses by the version of JAX is left alone.
See https://docs.jax.dev/en/latest/_autosummary/jax.process_count.html
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from mmmodernize.codemod import ModernizeCodemod


class RenameHostFunctions(ModernizeCodemod):
    """Renames the two functions, whose arguments are the same."""

    moved: ClassVar[Mapping[str, str]] = {
        "jax.host_count": "jax.process_count",
        "jax.host_id": "jax.process_index",
    }
