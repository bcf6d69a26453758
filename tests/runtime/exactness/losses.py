"""Losses in a table, by what is proved of them; and the model that they share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp

Loss = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Expected:
    """A loss with what it is; and what the function is as it stands."""

    loss: Loss
    word: str
    written: str


@dataclass(frozen=True)
class Losses:
    """The losses of a file, by name."""

    proved: dict[str, Expected] = field(default_factory=dict)
    unproved: dict[str, Loss] = field(default_factory=dict)

    def exact(self, word: str, *, written: str = "") -> Callable[[Loss], Loss]:
        """A loss with how those of microbatches make it up; and how as it is written, where that differs."""

        def register(loss: Loss) -> Loss:
            self.proved[loss.__name__] = Expected(loss, word, written or word)
            return loss

        return register

    def mixed(self, loss: Loss) -> Loss:
        """A loss that has no proof; the line that says so ends in `# here`."""
        self.unproved[loss.__name__] = loss
        return loss


def model(params: Any, x: Any) -> Any:
    """Two layers."""
    return jnp.tanh(x @ params["w"]) @ params["v"]
