"""How a codemod refuses its site."""

from __future__ import annotations


class SiteRefused(Exception):
    """A codemod refuses its site."""

    def __init__(self, reason: str, line: int, column: int) -> None:
        super().__init__(reason)
        self.reason, self.line, self.column = reason, line, column
