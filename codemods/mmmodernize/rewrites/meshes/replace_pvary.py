"""Mark values as varying over mesh axes by `jax.lax.pcast`.

    jax.lax.pvary(x, "data")
    ->  jax.lax.pcast(x, "data", to="varying")

To check: nothing; JAX's own message for `pvary` names this text.

Refused: `pvary` as a value; starred arguments; a `target-jax` before 0.8.2.
See https://docs.jax.dev/en/latest/_autosummary/jax.lax.pcast.html
"""

from __future__ import annotations

from typing import ClassVar

from mmmodernize.codemod import ModernizeCodemod
from mmmodernize.edits.arguments import append_argument
from mmrewrite.source.calls import stars_of


class ReplacePvary(ModernizeCodemod):
    """Replaces the name and says what to cast to."""

    names: ClassVar[tuple[str, ...]] = ("jax.lax.pvary",)

    def rewrite(self) -> None:
        """Replace one call."""
        if not self.use.is_direct:
            return
        call = self.site.call
        if call is None:
            self.refuse('`pvary` is used as a value; write a function that calls `jax.lax.pcast(..., to="varying")`')
        if stars_of(call):
            self.refuse("`*` or `**` hide the arguments; write them out")
        self.site.needs("0.8.2", "`jax.lax.pcast`")
        append_argument(self.site, call, 'to="varying"')
        self.site.replace(self.use.node, self.site.spell("jax.lax.pcast"))
