"""What the user of `mmrewrite modernize` asked for."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_TARGET = (0, 10)


@dataclass(frozen=True)
class Settings:
    """What the user asked for, beyond the files.

    `selected` names the codemods that may run, None for those that run without being asked for. `target` is the oldest
    JAX that the written code must run on. `width` is how long a line may become that a rewrite makes longer.
    """

    selected: frozenset[str] | None = None
    target: tuple[int, ...] = DEFAULT_TARGET
    width: int = 100

    def runs(self, name: str, *, on_request_only: bool) -> bool:
        """Whether a codemod may write anything."""
        return not on_request_only if self.selected is None else name in self.selected
