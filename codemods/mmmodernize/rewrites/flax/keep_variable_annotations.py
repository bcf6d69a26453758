"""Keep `sharding=` of Flax nnx variables an annotation, under the keyword that it has today.

    nnx.Param(init(key, (4, 8)), sharding=("data", "model"))
    ->  nnx.Param(init(key, (4, 8)), out_sharding=("data", "model"), eager_sharding=False)

Before Flax 0.12 the names were kept with the variable, for `nnx.get_partition_spec`, and did nothing more. Since then a
variable with names is laid out when it is made, in the mesh of the context, and raises where there is none. The keyword
became `sharding_names` and then `out_sharding`.

To check: the program was written for a Flax before 0.12.

Refused: modules that use `out_sharding`, `sharding_names` or eager sharding, since they may mean what Flax does today;
a `target-jax` before 0.10, on which that Flax does not install.
See https://flax.readthedocs.io/en/latest/flip/4844-var-eager-sharding.html
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import ClassVar

from mmmodernize.codemod import ModernizeCodemod
from mmmodernize.edits.arguments import append_argument
from mmmodernize.sites.site import Location, ModernizeContext
from mmrewrite.project.uses import ModuleUses

_VARIABLES = tuple(
    f"flax.nnx.{name}"
    for name in ("Variable", "Param", "LoRAParam", "BatchStat", "Cache", "Intermediate", "Perturbation")
)
_TODAY = re.compile(r"\b(?:out_sharding|sharding_names|eager_sharding|use_eager_sharding)\b")


class KeepVariableAnnotations(ModernizeCodemod):
    """Renames the keyword, and switches off what is new."""

    changed_in: ClassVar = {"": ("flax", "0.12.0", "changes")}

    @classmethod
    def markers(cls) -> tuple[bytes, ...]:
        """A file without nnx has no site."""
        return (b"nnx",)

    @classmethod
    def find(cls, module: ModuleUses, context: ModernizeContext) -> Iterator[Location]:
        """Calls that make a variable with `sharding=`."""
        for use in module.uses(_VARIABLES):
            call = module.parents.get(use.node)
            if isinstance(call, ast.Call) and call.func is use.node and _keyword(call) is not None:
                yield Location(module, use.node, use)

    def rewrite(self) -> None:
        """Rewrite one call."""
        call = self.site.call
        keyword = None if call is None else _keyword(call)
        assert call is not None
        assert keyword is not None
        if _TODAY.search(self.site.source.text):
            self.refuse(
                "`sharding=` was an annotation alone, and is `out_sharding=` today, by which Flax lays the variable "
                "out when it is made; this module uses names of today, so write `out_sharding=`, and "
                "`eager_sharding=False` if it is to be an annotation",
                keyword,
            )
        self.site.needs_package("flax", "0.12", "`out_sharding=`", jax="0.10")
        self.site.rename_keyword(keyword, "out_sharding")
        append_argument(self.site, call, "eager_sharding=False")


def _keyword(call: ast.Call) -> ast.keyword | None:
    return next((keyword for keyword in call.keywords if keyword.arg == "sharding"), None)
