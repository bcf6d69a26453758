"""Call `jax.tree.map` and its family by the names that JAX has today.

    jax.tree_map(f, params)
    ->  jax.tree.map(f, params)

Names that an import brings in keep their alias: `from jax import tree_map` becomes `from jax.tree_util import
tree_map`. With a `target-jax` before 0.4.25, `jax.tree_util.tree_map` is written at every place. `tree_multimap` is
`tree_map` under an older name.

Refused: nothing; a name of another module, such as `haiku.data_structures.tree_map`, is not one of these.
See https://docs.jax.dev/en/latest/jax.tree.html for the functions of `jax.tree`.
"""

from __future__ import annotations

from typing import ClassVar

from mmrewrite.modernize.codemod import ModernizeCodemod

_FUNCTIONS = ("map", "leaves", "flatten", "unflatten", "structure", "reduce", "transpose", "all")
_FIRST_WITH_JAX_TREE = (0, 4, 25)


class ReplaceTreeFunctions(ModernizeCodemod):
    """Replaces the name and leaves the arguments alone."""

    moved: ClassVar = {
        **{f"jax.tree_{function}": f"jax.tree_util.tree_{function}" for function in _FUNCTIONS},
        "jax.tree_multimap": "jax.tree_util.tree_map",
        "jax.tree_util.tree_multimap": "jax.tree_util.tree_map",
    }

    def rewrite(self) -> None:
        """Write the short new name where the JAX to support has it."""
        new = self.moved[self.use.name]
        if self.site.target >= _FIRST_WITH_JAX_TREE:
            new = new.replace("jax.tree_util.tree_", "jax.tree.")
        self.site.replace(self.use.node, self.site.spell(new))
