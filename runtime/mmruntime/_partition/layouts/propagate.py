"""Propagate: the shardings that Shardy gives to a function's arguments and results, without compiling it.

That lowers a program, which takes a fifth of a start whose executables come out of JAX's compilation cache. So where
JAX keeps executables on disk, the layouts that Shardy found are kept beside them. They decide how arrays are laid out
and never what a program computes, so that an entry which is out of date costs time, not correctness.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import logging
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.extend.mlir import ir, passmanager
from jax.extend.mlir.dialects import sdy
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from mmruntime import _compat
from mmruntime._compat import Var
from mmruntime._core.logical_axes import spec_axes
from mmruntime._core.whole_file import write_whole
from mmruntime._jaxpr.canonical_forms import Forms, layout
from mmruntime._jaxpr.content import ContentDigests
from mmruntime._jaxpr.ir import abstract
from mmruntime._partition.layouts.mesh_axes import Plain

# Shardings of arguments and of results; None where Shardy leaves them open.
Found = tuple[list[PartitionSpec | None], list[PartitionSpec | None]]


def propagate(
    function: Callable[..., Any],
    reads: Sequence[Any],
    writes: Sequence[Any],
    known: Sequence[NamedSharding | None],
    mesh: Mesh,
) -> Found:
    """Shardings that Shardy gives to a function's arguments and results; None where it leaves them open.

    Only its propagation pass is run (https://github.com/openxla/shardy), no compilation.

    Args:
        function: The function, of flat arguments.
        reads: Its arguments' variables.
        writes: Its results' variables.
        known: Shardings of arguments that are decided.
        mesh: The mesh; all of its axes are Auto.
    """
    # The extra argument ties the program to the mesh even when no other sharding is known.
    anchor = NamedSharding(mesh, PartitionSpec())
    # Without `keep_unused`, JAX drops unread arguments, and the attributes below would not be those of `reads`.
    with _compat.no_mesh():
        lowered = jax.jit(lambda _, *args: function(*args), in_shardings=(anchor, *known), keep_unused=True).lower(
            jax.ShapeDtypeStruct((), np.float32), *[abstract(var) for var in reads]
        )
    module: Any = lowered.compiler_ir("stablehlo")
    with module.context as context:
        _compat.leave_threads(context)
        passmanager.PassManager.parse("builtin.module(inline,sdy-propagation-pipeline)").run(module.operation)
        main = next(
            op
            for op in module.body.operations
            if op.operation.name == "func.func" and op.attributes["sym_name"].value == "main"
        )
        attributes = main.attributes
        ins = _specs(attributes["arg_attrs"]) if "arg_attrs" in attributes else [None] * (len(reads) + 1)
        outs = _specs(attributes["res_attrs"]) if "res_attrs" in attributes else [None] * len(writes)
    return (
        [_trim(_over(mesh, spec), var) for spec, var in zip(ins[1:], reads, strict=True)],
        [_trim(_over(mesh, spec), var) for spec, var in zip(outs, writes, strict=True)],
    )


def _specs(attributes: Any) -> list[PartitionSpec | None]:
    """The spec of each argument or result; the tokens of ordered effects are none of the function's."""
    entries = [ir.DictAttr(attribute) for attribute in attributes]
    return [_spec(each) for each in entries if "jax.token" not in each]


def _spec(entries: Any) -> PartitionSpec | None:
    if "sdy.sharding" not in entries:
        return None
    dims = sdy.TensorShardingAttr(entries["sdy.sharding"]).dimension_shardings
    axes = [tuple(sdy.AxisRefAttr(axis).name for axis in sdy.DimensionShardingAttr(dim).axes) for dim in dims]
    return PartitionSpec(*[None if not names else names[0] if len(names) == 1 else names for names in axes])


def _over(mesh: Mesh, spec: PartitionSpec | None) -> PartitionSpec | None:
    """The spec; None if its axes belong to another mesh of the same devices, made by the program itself."""
    return spec if spec_axes(spec or ()) <= set(mesh.axis_names) else None


def _trim(spec: PartitionSpec | None, var: Any) -> PartitionSpec | None:
    """Drop the dimensions that only the lowered value has (PRNG keys) and trailing Nones."""
    if spec is None:
        return None
    entries = list(spec)[: len(var.aval.shape)]
    while entries and entries[-1] is None:
        entries.pop()
    return PartitionSpec(*entries)


log = logging.getLogger(__name__)


class PropagatedLayouts:
    """Layouts that Shardy gives to programs, each form of a program asked for once.

    Attributes:
        forms: Makes the forms of all programs that are asked for.
        contents: Makes their digests.
        plain: What their equations name nothing with; see `mmruntime._partition.layouts.mesh_axes.Plain`.
    """

    def __init__(self) -> None:
        self._seen: dict[Hashable, Found] = {}
        self.forms = Forms()
        self.plain: Plain = {}

    @functools.cached_property
    def contents(self) -> ContentDigests:
        """See above."""
        return ContentDigests()

    def of(
        self,
        closed: Any,
        reads: Sequence[Var],
        writes: Sequence[Var],
        known: Sequence[NamedSharding | None],
        mesh: Mesh,
        canonical: Hashable = None,
    ) -> Found:
        """The shardings of a closed jaxpr's arguments and results; see `propagate`.

        Args:
            closed: The program.
            reads: Its arguments' variables.
            writes: Its results' variables.
            known: Shardings of arguments that are decided.
            mesh: The mesh; all of its axes are Auto.
            canonical: The form of the program, if it is known.
        """
        made = self.forms.of(closed, mesh) if canonical is None else canonical
        key = (made, tuple(map(layout, known)), mesh.axis_names, mesh.axis_sizes)
        if key not in self._seen:
            folder = _compat.own_cache()
            path = None if folder is None else self._path(folder, made, key[1:], mesh)
            found = None if path is None else _read(path, len(reads), len(writes), mesh)
            if found is None:
                found = propagate(_compat.as_traced_fun(closed), reads, writes, known, mesh)
                if path is not None:
                    _write(path, found)
            self._seen[key] = found
        return self._seen[key]

    def _path(self, folder: Path, program: Hashable, further: Hashable, mesh: Mesh) -> Path | None:
        """The file of an entry, given a program's form; None if the program cannot be named."""
        entry = self.contents.of((_versions(), program, further), mesh.devices.flat[0].platform)
        return None if entry is None else folder / f"{entry}.json"


@functools.cache
def _versions() -> str:
    """The versions of all that decides about layouts."""
    try:
        ours = importlib.metadata.version("mmrewrite")
    except importlib.metadata.PackageNotFoundError:
        # Copied into another tree.
        ours = ""
    return f"{ours}, {_compat.versions()}"


def _read(path: Path, num_reads: int, num_writes: int, mesh: Mesh) -> Found | None:
    if not path.is_file():
        return None
    try:
        ins, outs = json.loads(path.read_text("utf-8"))
        found = [_spec_of(entries, mesh) for entries in ins], [_spec_of(entries, mesh) for entries in outs]
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    return found if (len(ins), len(outs)) == (num_reads, num_writes) else None


def _spec_of(entries: list[Any] | None, mesh: Mesh) -> PartitionSpec | None:
    if entries is None:
        return None
    names = [name for entry in entries for name in ([entry] if isinstance(entry, str) else entry or ())]
    if not set(names) <= set(mesh.axis_names):
        raise ValueError(f"{names} are no axes of the mesh")
    return PartitionSpec(*[tuple(entry) if isinstance(entry, list) else entry for entry in entries])


def _write(path: Path, found: Found) -> None:
    text = json.dumps([[None if spec is None else list(spec) for spec in specs] for specs in found])
    try:
        write_whole(path, text.encode())
    except OSError as error:
        log.debug("Layouts are not kept in %s: %s", path.parent, error)
