"""Report every other name that JAX, Flax, optax, chex or Orbax deprecated or removed.

    from jax.core import ConcreteArray
    known = isinstance(x, ConcreteArray)
    ->  model.py:2:23: `jax.core.ConcreteArray` is gone since JAX 0.4.36; write `isinstance(x, jax.core.Tracer)` ...

The names are those of an index that is made from the packages' wheels (`tools/index_names.py`): what warns, raises or
is gone since which release, and what the package says to write. A row for a module stands for all that it held. Unused
imports of names that are gone are removed.

What only may be an old name is told as well: one that comes by `from jax import *`, that `getattr(jax, "tree_map")`
looks up, that the program sets by itself, or that a `try` or a choice binds to something else besides; one that is read
of a value that may be a module, through attributes, containers, parameters, results, loops and patterns; and one in
text that is run.

To check: each use by hand; nothing is written.

Refused: every use of a name that raises today. One that only warns is left alone and reported.
See https://docs.jax.dev/en/latest/changelog.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar

from mmmodernize.codemod import ModernizeCodemod
from mmmodernize.names.name_index import may_use_old_names, old_names
from mmmodernize.sites.site import Location, ModernizeContext
from mmrewrite.project.uses import ModuleUses


class ReportOldNames(ModernizeCodemod):
    """Writes nothing."""

    names: ClassVar[tuple[str, ...]] = tuple(old_names())
    takes_the_rest: ClassVar[bool] = True

    @classmethod
    def may_be_in(cls, data: bytes) -> bool:
        """The names are many, so they are looked up by the words of a file."""
        return may_use_old_names(data)

    @classmethod
    def find(cls, module: ModuleUses, context: ModernizeContext) -> Iterator[Location]:
        """The uses of names that no other codemod takes, without uses of an alias, which is reported itself."""
        mine = [name for name in module.among(context.owners) if context.owners[name] == "report_old_names"]
        used = {use.name for use in module.uses(mine)}
        if not used:
            return
        for use in module.uses(context.owners):
            is_written_here = use.is_direct or not isinstance(use.node, ast.Name)
            if is_written_here and use.name in used and context.owners[use.name] == "report_old_names":
                yield Location(module, use.node, use)

    def rewrite(self) -> None:
        """Report the use."""
        found = old_names()[self.use.name]
        reason = f"`{found.name}` {found.history}; {found.advice}"
        if found.is_gone:
            self.refuse(reason)
        self.site.leave(f"it {found.history}; {found.advice}")
