"""Build the device mesh of a program's hints.

    # mm: mesh(stage=4, model=2); axes(batch=None, hidden="model")
    ->  mesh = mm.MultiMesh(
            axis_sizes=(4, 2), axis_names=("stage", "model"), logical_axes=(("batch", None), ("hidden", "model"))
        )

Without an `axes(...)` hint the logical axes are those of the configuration, else those of the program's own table,
`logical_axis_rules = [("batch", "data"), ...]`, as far as this mesh has their device axes. What is left out is
reported.

To check: the axis sizes multiply to the number of devices that the program will have.

Refused: a mesh in a class body, because it would become an attribute of the class; and a project with a module of its
own that is called `mmruntime`, which would be imported in place of the library.
See https://docs.jax.dev/en/latest/notebooks/Distributed_arrays_and_automatic_parallelization.html for meshes and axes.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence

from mmrewrite.codemod.base import MeshCodemod
from mmrewrite.directives.collect import Argument, Hint
from mmrewrite.directives.vocabulary import ANYWHERE, nearest
from mmrewrite.project.axis_names import AxisRules, Device, find_rules
from mmrewrite.project.facts import RUNTIME, Facts
from mmrewrite.project.project import Project
from mmrewrite.project.reach import Reach
from mmrewrite.results import Refusal
from mmrewrite.source.text import quoted
from mmrewrite.values.flow import values_of


class DeclareMesh(MeshCodemod):
    """Writes the `mesh = ...` statement where the hint stands."""

    directive = "mesh"
    kinds = ANYWHERE
    takes = ("axes",)

    def rewrite(self) -> None:
        """Put the mesh above the hint's statement, with the logical axes of its `axes(...)` hint."""
        if self.site.scope.kind == "class":
            self.refuse("a mesh in a class body would be an attribute of the class; write it above the class")
        self._refuse_another_runtime()
        mesh = self.site.own_mesh()
        if self.site.scope.kind == "module" and self.site.draft.is_taken_by_stars(mesh.name):
            self.refuse(
                f"the mesh would be `{mesh.name}`, and another thing of this name is where `import *` takes it; import "
                "by name there, or write the mesh in a module of its own"
            )
        if self.site.scope.kind == "module" and self._is_had_by_others(mesh.name):
            self.refuse(
                f"the mesh would be `{mesh.name}`, and other modules read or set another thing of this name in this "
                "module; write the mesh in a module of its own"
            )
        sizes = [(name, argument.text) for name, argument in self.hint.named]
        arguments = [
            f"axis_sizes={_tuple([size for _, size in sizes])}",
            f"axis_names={_tuple([quoted(name) for name, _ in sizes])}",
        ]
        pairs = self.logical_axes(frozenset(name for name, _ in sizes))
        if pairs:
            arguments.append(f"logical_axes={_tuple([f'({logical}, {device})' for logical, device in pairs])}")
        self.site.insert_above(f"{mesh.name} = {self.site.runtime}.MultiMesh({', '.join(arguments)})")

    def _is_had_by_others(self, name: str) -> bool:
        """Whether other modules set a name in this one, or read what its `__getattr__` gives for that."""
        project, own = self.site.project, self.site.facts.names
        if not any(name in each.source.text for each in project.facts.values() if each is not self.site.facts):
            return False
        flow = values_of(project)
        if any(True for _ in flow.stores.set_in(flow.uses_of(self.site.facts), name)):
            return True
        if "__getattr__" not in own.scope.bindings:
            return False
        reads = ((module, node.value) for module, node in flow.stores.reads(name) if isinstance(node, ast.Attribute))
        is_read = any(flow.full_name(module, node) == own.name for module, node in reads)
        return is_read or any(item.name == f"{own.name}.{name}" for module in flow.modules for item in module.imported)

    def _refuse_another_runtime(self) -> None:
        """Refuse a mesh whose module would import another `mmruntime` than the library, which may be vendored."""
        found = self.site.project.module(RUNTIME, self.site.facts)
        if found is not None and "MultiMesh" not in found.names.scope.bindings:
            self.refuse(
                f"this project has a module `{RUNTIME}` of its own, which would be imported in place of the library "
                "that rewritten programs need; rename it"
            )

    def logical_axes(self, known: frozenset[str]) -> list[tuple[str, str]]:
        """(logical, device) pairs as source text."""
        hint = self.axes_hint()
        if hint is None:
            configured = [pair for pair in self.site.draft.axes if pair[1] is None or pair[1] in known]
            return [(quoted(logical), _device(device)) for logical, device in configured or self.rules(known)]
        self.site.draft.done.add(hint)
        pairs = []
        for argument in hint.arguments:
            if argument.name is not None:
                pairs.append((quoted(argument.name), argument.text))
                self.check_device(argument, argument.value, known)
            elif isinstance(argument.value, ast.Tuple) and len(argument.value.elts) == 2:
                self.check_device(argument, argument.value.elts[1], known)
                logical, device = map(_literal, argument.value.elts)
                pairs.append((logical, device))
            else:
                self.site.error('an axis without a name is a pair: `axes(("batch", "data"))`', argument)
        return pairs

    def rules(self, known: frozenset[str]) -> list[tuple[str, Device]]:
        """The program's only rule table, as far as this mesh has its device axes; empty if there are several."""
        tables = tables_for(self.site.project, self.site.facts)
        return fitting(tables[0], known) if len(tables) == 1 else []

    def axes_hint(self) -> Hint | None:
        """The `axes(...)` hint on the same statement, else the module's only one if this is the only mesh."""
        hints = [hint for hint in self.site.facts.hints.hints if hint.directive in self.takes]
        meshes = [mesh for mesh in self.site.facts.meshes if mesh.hint is not None]
        mine = [hint for hint in hints if hint.statement is self.hint.statement]
        if not mine and len(hints) == 1 and len(meshes) == 1:
            mine = hints
        return mine[0] if mine else None

    @classmethod
    def review(cls, project: Project, reach: Reach, modules: Sequence[Facts]) -> Iterator[Refusal]:
        """Rule tables and configured axes that did not become the axes of a mesh, or only in part."""
        for facts in modules:
            hints = list(facts.hints.hints)
            meshes = [hint for hint in hints if hint.directive == cls.directive and hint not in project.withheld]
            if len(meshes) == 1 and not any(hint.directive in cls.takes for hint in hints):
                yield from cls.lost_rules(tables_for(project, facts), {name for name, _ in meshes[0].named})
            for mesh in meshes:
                if not any(hint.directive in cls.takes for hint in hints if hint.statement is mesh.statement):
                    yield from cls.lost_names(facts, mesh, project.axes)

    @staticmethod
    def lost_names(facts: Facts, mesh: Hint, configured: Sequence[tuple[str, str | None]]) -> Iterator[Refusal]:
        """A report if a mesh lacks the device axes of logical names of the configuration."""
        known = {name for name, _ in mesh.named}
        lost = [(logical, device) for logical, device in configured if device is not None and device not in known]
        if lost:
            named = " and ".join(f'`{logical} = "{device}"`' for logical, device in lost)
            reason = (
                f"this mesh has no such axis, so {named} of the configuration was left out; give the mesh the axis, or "
                "write `axes(...)` for it, with `axes(batch=None)` for a name that is replicated"
            )
            yield Refusal(facts.path, mesh.reference.line, mesh.reference.column, reason, "declare_mesh")

    @staticmethod
    def lost_rules(tables: Sequence[AxisRules], known: Collection[str]) -> Iterator[Refusal]:
        """A report for each table that a mesh with the `known` axes loses, or loses a part of."""
        for table in tables:
            lost = sorted({name for _, device in table.pairs for name in _names(device)} - {*known})
            if len(tables) > 1:
                reason = "there is more than one table of axis rules, so none became the axes of the mesh"
            elif lost:
                reason = (
                    f"the mesh has no axis {' or '.join(f'`{name}`' for name in lost)}, so these rules were left out"
                )
            else:
                continue
            yield Refusal(table.path, table.line, 1, f'{reason}; write `axes(batch="data")` with yours', "declare_mesh")

    def check_device(self, argument: Argument, value: ast.expr, known: frozenset[str]) -> None:
        """Report literal device axes that the mesh lacks."""
        for name in value.elts if isinstance(value, ast.Tuple | ast.List) else [value]:
            if isinstance(name, ast.Constant) and isinstance(name.value, str) and name.value not in known:
                message = f"the mesh has no axis `{name.value}`{nearest(name.value, known)}"
                self.site.misspelt(message, argument, name.value, known)


def tables_for(project: Project, facts: Facts) -> tuple[AxisRules, ...]:
    """The rule tables of a mesh's module, else those of the modules around it."""
    return find_rules([facts]) or find_rules(project.connected(facts))


def fitting(rules: AxisRules, known: Collection[str]) -> list[tuple[str, Device]]:
    """The pairs of a table whose device axes are among `known`."""
    pairs: list[tuple[str, Device]] = []
    for logical, device in rules.pairs:
        if isinstance(device, tuple):
            have = tuple(axis for axis in device if axis in known)
            if len(have) > 1:
                pairs.append((logical, have))
            elif have:
                pairs.append((logical, have[0]))
        elif device is None or device in known:
            pairs.append((logical, device))
    return pairs


def _names(device: Device) -> tuple[str, ...]:
    return device if isinstance(device, tuple) else () if device is None else (device,)


def _device(device: Device) -> str:
    if isinstance(device, tuple):
        return _tuple([quoted(axis) for axis in device])
    return "None" if device is None else quoted(device)


def _literal(node: ast.expr) -> str:
    """The source of a pair's part, with its strings in double quotes."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return quoted(node.value)
    if isinstance(node, ast.Tuple | ast.List):
        return _tuple([_literal(item) for item in node.elts])
    return ast.unparse(node)


def _tuple(items: list[str]) -> str:
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
