"""Report internal names of `jax.experimental.pjit`, such as `_UNSPECIFIED`, `ParsedPartitionSpec` and `pjit_p`.

    from jax.experimental.pjit import _UNSPECIFIED
    resources = _UNSPECIFIED
    ->  options.py:2:12: `jax.experimental.pjit._UNSPECIFIED` is gone; ...

A module that imports one of them does not run on today's JAX. Unused imports are removed. Specs of a `pjit` are left to
`replace_pjit`, and `AUTO` in programs for MultiMesh to `replace_multimesh_jit`.

To check: each use by hand; nothing is written.

Refused: every use, with its replacement.
See https://docs.jax.dev/en/latest/jax.sharding.html for what is public.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from mmmodernize.codemod import ModernizeCodemod
from mmmodernize.meshes.multimesh_uses import is_carried
from mmmodernize.names.shared_names import GONE_VALUES, PJIT
from mmrewrite.project.uses import ModuleUses

if TYPE_CHECKING:
    from mmmodernize.sites.site import Location, ModernizeContext

_HOME = "jax.experimental.pjit"
_UNSET = "leave a sharding out where none is meant, and let `None` or a value of your own stand for that in your code"
_PARSED = "a `jax.sharding.PartitionSpec` holds axis names, tuples of them and `None`; go through it as it is"
_COMPILED = "ask for `input_shardings` and `output_shardings` of what `.lower(...).compile()` gives"
_INSTEAD = {
    "AUTO": _UNSET,
    "FROM_GDA": _UNSET,
    "_UNSPECIFIED": _UNSET,
    "_is_unspecified": _UNSET,
    "_is_auto": _UNSET,
    "_is_from_gda": _UNSET,
    "ParsedPartitionSpec": _PARSED,
    "_prepare_axis_resources": _PARSED,
    "get_array_mapping": _PARSED,
    "_get_op_sharding_from_executable": _COMPILED,
    "_get_pspec_from_executable": _COMPILED,
    "parse_flatten_op_sharding": _COMPILED,
    "pjit_p": "look for `jax.extend.core.primitives.jit_p`, which a `pjit` is in a jaxpr today",
    "hashable_pytree": "flatten the tree, and keep its leaves as a tuple beside its structure",
}


class ReportPjitNames(ModernizeCodemod):
    """Writes nothing."""

    names: ClassVar[tuple[str, ...]] = tuple(f"{_HOME}.{name}" for name in _INSTEAD)
    beside: ClassVar = ()

    @classmethod
    def find(cls, module: ModuleUses, context: ModernizeContext) -> Iterator[Location]:
        """The uses, but for specs of a `pjit`, and for `AUTO` in programs for MultiMesh."""
        carried = is_carried(module)
        for place in super().find(module, context):
            if carried and place.use is not None and place.use.name == f"{_HOME}.AUTO":
                continue
            if place.use is None or place.use.name not in GONE_VALUES or not _is_spec(module, place.use.node):
                yield place

    def rewrite(self) -> None:
        """Report the use."""
        name = self.use.name
        self.refuse(f"`{name}` is gone; {_INSTEAD[name.rpartition('.')[2]]}")


def _is_spec(module: ModuleUses, node: ast.AST) -> bool:
    """Whether a node lies in an argument of a `pjit`."""
    calls = (holder for holder in module.above(node) if isinstance(holder, ast.Call))
    names = module.facts.names
    return any(names.resolve(part, module.scope_of(call)) in PJIT for call in calls for part in (call.func, *call.args))
