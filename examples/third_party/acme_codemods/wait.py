"""Wait for a value.

    y = f(x)  # mm: wait
    ->  y = jax.block_until_ready(f(x))

To check: nothing.

Refused: several targets.
See https://docs.jax.dev/en/latest/_autosummary/jax.block_until_ready.html
"""

import ast

from mmrewrite.codemod.base import MeshCodemod
from mmrewrite.directives.vocabulary import STATEMENT, Directive, Role

DIRECTIVE = Directive("wait", Role.LAYOUT, frozenset((STATEMENT,)), "wait")


class WaitForValue(MeshCodemod):
    directive = "wait"

    def rewrite(self):
        if not isinstance(self.site.statement, ast.Assign) or len(self.site.statement.targets) > 1:
            self.refuse("several names wait for one value; write one")
        self.function = f"{self.site.module('jax')}.block_until_ready"
        self.site.transform(self.site.statement, self)

    def leave_Assign(self, original_node, updated_node):
        return updated_node.with_changes(value=self.generated(self.function, updated_node.value))
