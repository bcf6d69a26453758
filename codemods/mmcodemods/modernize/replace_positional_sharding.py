"""Keep chains of `PositionalSharding`, on a class of the runtime that makes `NamedSharding`s.

    sharding = PositionalSharding(devices).reshape(4, 2)
    ->  sharding = compat.PositionalSharding(devices).reshape(4, 2)

JAX no longer has a sharding that is reshaped, transposed and replicated like an array. The class of the runtime does
the same to a `NamedSharding`: every device holds the same part of an array as before, whatever shapes the program
computes and wherever it passes a sharding, and all shardings of one device list can be combined.

If a chain replicates over the devices of a mesh and is an argument of a JAX function, the mesh is used:

    jax.device_put(x, PositionalSharding(mesh.devices).replicate())
    ->  jax.device_put(x, NamedSharding(mesh, PartitionSpec()))

To check: code that reads the class of the sharding.

Refused: a `target-jax` before 0.10, on which the runtime does not install.
See https://docs.jax.dev/en/latest/notebooks/Distributed_arrays_and_automatic_parallelization.html
"""

from __future__ import annotations

import ast
from typing import ClassVar

from mmrewrite.modernize.codemod import ModernizeCodemod
from mmrewrite.source.names import dotted_name

_CLASSES = (
    "jax.sharding.PositionalSharding",
    "jax.experimental.sharding.PositionalSharding",
    "jax._src.sharding.PositionalSharding",
    "jax._src.sharding_impls.PositionalSharding",
)
_MESHES = frozenset(("jax.sharding.Mesh", "jax.make_mesh", "jax.interpreters.pxla.Mesh", "jax.experimental.maps.Mesh"))
_NO_NAMES = "its dimensions are those of arrays by position; write a `NamedSharding` of a mesh of these devices"
# Functions that take any sharding, and the position of that argument.
_PLACES = {"jax.device_put": 1, "jax.lax.with_sharding_constraint": 1}


class ReplacePositionalSharding(ModernizeCodemod):
    """Replaces the class by the runtime's, or a replicated chain by the mesh that it is over."""

    names: ClassVar[tuple[str, ...]] = _CLASSES

    def rewrite(self) -> None:
        """Replace the name, or the chain that begins with it."""
        if not self.use.is_direct:
            return
        chain = self._replicated_over_mesh()
        if chain is not None:
            whole, mesh = chain
            sharding = self.site.spell("jax.sharding.NamedSharding")
            spec = self.site.spell("jax.sharding.PartitionSpec")
            self.site.replace(whole, f"{sharding}({self.site.text(mesh)}, {spec}())")
            return
        self.site.needs("0.10", "`mmruntime.compat`")
        self.site.replace(self.use.node, self.site.spell_compat("PositionalSharding", _NO_NAMES))

    def _replicated_over_mesh(self) -> tuple[ast.expr, ast.expr] | None:
        """The whole of `PositionalSharding(mesh.devices).replicate()` as an argument for JAX, and the mesh."""
        parents, call = self.site.module.parents, self.site.call
        if call is None or len(call.args) != 1 or call.keywords:
            return None
        devices = call.args[0]
        method = parents.get(call)
        whole = parents.get(method) if isinstance(method, ast.Attribute) and method.attr == "replicate" else None
        if not (isinstance(whole, ast.Call) and whole.func is method and not whole.args and not whole.keywords):
            return None
        if not (isinstance(devices, ast.Attribute) and devices.attr == "devices" and self._is_mesh(devices.value)):
            return None
        user = parents.get(whole)
        if not isinstance(user, ast.Call):
            return None
        place = _PLACES.get(self.site.resolve(user.func) or "")
        return (whole, devices.value) if place is not None and user.args[place : place + 1] == [whole] else None

    def _is_mesh(self, node: ast.expr) -> bool:
        dotted = dotted_name(node)
        if dotted is None or "." in dotted:
            return False
        binding = self.site.facts.names.binding(dotted, self.site.module.scope_of(node))
        if binding is None or not isinstance(binding.value, ast.Call):
            return False
        return self.site.resolve(binding.value.func) in _MESHES
