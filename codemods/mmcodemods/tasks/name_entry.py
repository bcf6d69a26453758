"""Name a function that `mmrewrite verify` calls, in the original and in the rewritten program.

    step = jax.jit(train)  # mm: mjit; verify(args=make_example_args)
    ->  step = mm.mjit(train, mesh=mesh)

To check: the example arguments are like those of real runs, in shape and type.

Refused: a function without a name at module level, because another process imports it by that name.
See https://docs.python.org/3/library/importlib.html for how it is imported.
"""

from __future__ import annotations

from mmrewrite.codemod.base import MeshCodemod
from mmrewrite.directives.vocabulary import DEF, STATEMENT
from mmrewrite.project.verify_entries import NoEntry, entry_of


class NameEntry(MeshCodemod):
    """Writes nothing: the hint is for `mmrewrite verify`, and is removed with the others."""

    directive = "verify"
    kinds = frozenset((STATEMENT, DEF))

    def rewrite(self) -> None:
        """Check that the function, and the function that makes its arguments, can be imported by name."""
        try:
            entry_of(self.site.facts, self.hint)
        except NoEntry as problem:
            self.refuse(str(problem))
