"""Find the calls of the runtime in one module, and what they say about meshes, steps, tasks and loops."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from mmrewrite.directives.vocabulary import DIRECTIVES, Role
from mmrewrite.plan.sites import ALL_LAYERS, LoopSite, MeshSite, SourceLine, StepSite, TaskSite, WrittenValue
from mmrewrite.project.facts import RUNTIME, Facts, Mesh
from mmrewrite.results import Edit
from mmrewrite.source.calls import call_form

# Functions that compile a step: the rewrites of directives, and one that users call themselves.
_COMPILERS = tuple(name for record in DIRECTIVES.values() if record.role is Role.COMPILE for name in record.runtime)
_LOOPS = tuple(name for record in DIRECTIVES.values() if record.role is Role.MICROBATCH for name in record.runtime)
_STEPS = frozenset(f"{RUNTIME}.{name}" for name in (*_COMPILERS, "flax.parallelize_step"))

SiteT = TypeVar("SiteT", MeshSite, StepSite, TaskSite, LoopSite)


@dataclass(frozen=True, eq=False)
class FoundSite(Generic[SiteT]):
    """A site, the module and statement that hold it, and the mesh that a step names."""

    facts: Facts
    statement: ast.stmt
    site: SiteT
    mesh: ast.expr | None = None


@dataclass(frozen=True, eq=False)
class Sites:
    """The sites of a module, or of several, in the order of the source."""

    meshes: Mapping[Mesh, FoundSite[MeshSite]]
    steps: tuple[FoundSite[StepSite], ...]
    tasks: tuple[FoundSite[TaskSite], ...]
    loops: tuple[FoundSite[LoopSite], ...]


def read_calls(facts: Facts, original: Facts, edits: Sequence[Edit]) -> Sites:
    """The sites of one module.

    Args:
        facts: The module as it will run.
        original: The same module as the user has it.
        edits: The edits that make one from the other.
    """
    reader = _CallReader(facts, original, edits)
    reader.read()
    return Sites(reader.meshes, tuple(reader.steps), tuple(reader.tasks), tuple(reader.loops))


def join_sites(modules: Sequence[Sites]) -> Sites:
    """The sites of several modules."""
    return Sites(
        {mesh: found for sites in modules for mesh, found in sites.meshes.items()},
        tuple(found for sites in modules for found in sites.steps),
        tuple(found for sites in modules for found in sites.tasks),
        tuple(found for sites in modules for found in sites.loops),
    )


class _CallReader:
    """Collects the sites of one module."""

    def __init__(self, facts: Facts, original: Facts, edits: Sequence[Edit]) -> None:
        self.facts, self.original, self.edits = facts, original, edits
        self.meshes: dict[Mesh, FoundSite[MeshSite]] = {}
        self.steps: list[FoundSite[StepSite]] = []
        self.tasks: list[FoundSite[TaskSite]] = []
        self.loops: list[FoundSite[LoopSite]] = []
        self.readers: dict[str, Callable[[ast.Call, ast.stmt, Sequence[ast.AST]], None]] = {
            f"{RUNTIME}.Task": self.read_task,
            f"{RUNTIME}.stage": self.read_layers,
            f"{RUNTIME}.stage_scan": self.read_stacked_layers,
            f"{RUNTIME}.stage_sequential": self.read_chained_layers,
            f"{RUNTIME}.register_task": self.read_registration,
            **dict.fromkeys([f"{RUNTIME}.{name}" for name in _LOOPS], self.read_loop),
        }

    def read(self) -> None:
        """Visit every statement once."""
        for mesh in self.facts.meshes:
            if mesh.hint is None and isinstance(mesh.statement, ast.Assign):
                found = FoundSite(self.facts, mesh.statement, self.mesh(mesh, mesh.statement.value))
                self.meshes[mesh] = found
        for statement, scope in self.facts.names.scopes.items():
            for decorator in getattr(statement, "decorator_list", ()):
                if self.facts.names.resolve(decorator, scope) in _STEPS:
                    self.add_step(decorator, statement, getattr(statement, "name", ""), None)
            for call, holders in _calls(statement, ()):
                form = call_form(self.facts.names, call, scope)
                if not form.is_called and holders and getattr(holders[-1], "func", None) is call:
                    # It is read with the call of it.
                    continue
                name = self.facts.names.resolve(form.function, scope)
                if name in self.readers and form.is_called:
                    self.readers[name](call, statement, holders)
                elif name in _STEPS and (form.positional or not form.is_called):
                    given = form.keyword("mesh")
                    text = ast.unparse(form.positional[0]) if form.positional else getattr(statement, "name", "")
                    self.add_step(call, statement, text, given.value if given is not None else None)
                elif isinstance(call.func, ast.Attribute) and call.func.attr == "register_task":
                    self.read_registration(call, statement, holders)

    def place(self, node: ast.expr | ast.stmt, *functions: str) -> SourceLine:
        """Line in the user's file: that of the hint that made `node`, if its rewrite calls one of `functions`."""
        directives = tuple(
            record.name for record in DIRECTIVES.values() if not set(functions).isdisjoint(record.runtime)
        )
        position = self.facts.source.offset(node.lineno, node.col_offset)
        shift = 0
        for edit in self.edits:
            start = edit.start + shift
            if position < start:
                break
            if position < start + len(edit.text):
                hints = [hint.line for hint in edit.hints if hint.text.startswith(directives)] if directives else []
                # An edit of several hints does not say which of them made a call; the first one is near enough.
                line = hints[0] if hints else self.original.source.position(edit.start)[0]
                return SourceLine(self.facts.path, line)
            shift += len(edit.text) - (edit.end - edit.start)
        return SourceLine(self.facts.path, self.original.source.position(position - shift)[0])

    def mesh(self, mesh: Mesh, call: ast.expr) -> MeshSite:
        """A mesh, from the call that makes it."""
        place = self.place(call, "MultiMesh")
        names, sizes = _keyword(call, "axis_names"), _keyword(call, "axis_sizes")
        logical = tuple(_pairs(_keyword(call, "logical_axes")))
        if not isinstance(names, ast.Tuple | ast.List) or not isinstance(sizes, ast.Tuple | ast.List):
            keywords = " and ".join(f"{word}={ast.unparse(node)}" for word, node in _keywords(call) if word)
            return MeshSite(place, mesh.name, (), logical, f"its axes are made by an expression: {keywords}")
        axes = tuple((str(_value(name)), _value(size)) for name, size in zip(names.elts, sizes.elts, strict=False))
        unknown = [f"{name}={value}" for name, value in axes if value.number is None]
        return MeshSite(place, mesh.name, axes, logical, ", ".join(unknown) or None)

    def add_step(self, node: ast.expr, statement: ast.stmt, name: str, mesh: ast.expr | None) -> None:
        """A function that is compiled for a mesh."""
        site = StepSite(self.place(node, *_COMPILERS), name)
        self.steps.append(FoundSite(self.facts, statement, site, mesh))

    def read_task(self, call: ast.Call, statement: ast.stmt, holders: Sequence[ast.AST]) -> None:
        """`mm.Task(name=..., mesh_slice={...})`, wherever it is used."""
        code, is_scope = self.placed_code(call, statement, holders)
        name = _keyword(call, "name") or (call.args[0] if call.args else None)
        piece = _keyword(call, "mesh_slice")
        mesh_slice: tuple[tuple[str, WrittenValue], ...] = ()
        unknown = None
        if isinstance(piece, ast.Dict) and all(isinstance(key, ast.Constant) for key in piece.keys):
            keys = [str(key.value) for key in piece.keys if isinstance(key, ast.Constant)]
            mesh_slice = tuple((key, _value(value)) for key, value in zip(keys, piece.values, strict=True))
        elif piece is not None:
            unknown = f"mesh_slice={ast.unparse(piece)} (an expression)"
        else:
            for word in ("loop_dependent_mesh_slice", "mesh"):
                node = _keyword(call, word)
                unknown = f"{word}={ast.unparse(node)} (an expression)" if node is not None else unknown
        place = self.place(call, "Task")
        task_name = _value(name) if name is not None else WrittenValue(code, code) if is_scope else None
        self.add_task(statement, TaskSite(place, code, task_name, mesh_slice, unknown=unknown))

    def read_layers(self, call: ast.Call, statement: ast.stmt, holders: Sequence[ast.AST]) -> None:
        """`mm.stage(i, n, axis=...)`."""
        code, _ = self.placed_code(call, statement, holders)
        count = _keyword(call, "count") or (call.args[1] if len(call.args) > 1 else None)
        layers = _value(count) if count is not None else ALL_LAYERS
        self.add_layers(statement, call, "stage", code, layers)

    def read_stacked_layers(self, call: ast.Call, statement: ast.stmt, holders: Sequence[ast.AST]) -> None:
        """`mm.stage_scan(scan, axis=...)`, whose layers are the leading dimension of the scanned arrays."""
        self.add_layers(statement, call, "stage_scan", ast.unparse(call.args[0] if call.args else call), ALL_LAYERS)

    def read_chained_layers(self, call: ast.Call, statement: ast.stmt, holders: Sequence[ast.AST]) -> None:
        """`mm.stage_sequential(module, axis=...)`, whose layers the module holds."""
        code = ast.unparse(call.args[0] if call.args else call)
        self.add_layers(statement, call, "stage_sequential", code, ALL_LAYERS)

    def add_layers(self, statement: ast.stmt, call: ast.Call, function: str, code: str, layers: WrittenValue) -> None:
        """Keep layers that are dealt out along `axis=`, by default the axis `stage`."""
        axis = _keyword(call, "axis")
        name = WrittenValue('"stage"', "stage") if axis is None else _value(axis)
        unknown = None if isinstance(name.literal, str) else f"axis={name}"
        chunks, placement = _keyword(call, "chunks"), _keyword(call, "placement")
        rounds = 1 if placement is None else 2
        if chunks is not None:
            unknown = unknown if _value(chunks).number is not None else f"chunks={_value(chunks)}"
            rounds = _value(chunks).number or 1
        folded = placement is not None
        mesh_slice = ((str(name.literal or name.text), WrittenValue(":", ":")),)
        place = self.place(call, function)
        self.add_task(statement, TaskSite(place, code, None, mesh_slice, layers, unknown, rounds, folded))

    def read_registration(self, call: ast.Call, statement: ast.stmt, holders: Sequence[ast.AST]) -> None:
        """`register_task("scope", callback=...)`; for `task=`, `read_task` reads the `mm.Task` in it."""
        callback = _keyword(call, "callback")
        if callback is None or not call.args or _keyword(call, "task") is not None:
            return
        code = f"scope {ast.unparse(call.args[0])}"
        unknown = f"callback={ast.unparse(callback)} (an expression)"
        self.add_task(statement, TaskSite(self.place(call, "register_task"), code, None, (), unknown=unknown))

    def add_task(self, statement: ast.stmt, site: TaskSite) -> None:
        """Keep a task."""
        self.tasks.append(FoundSite(self.facts, statement, site))

    def placed_code(self, call: ast.Call, statement: ast.stmt, holders: Sequence[ast.AST]) -> tuple[str, bool]:
        """The function or scope that a task places, as source text, and whether it is a scope."""
        user = next((node for node in reversed(holders) if isinstance(node, ast.Call)), None)
        if user is not None and isinstance(user.func, ast.Attribute | ast.Name) and user.args:
            called = user.func.attr if isinstance(user.func, ast.Attribute) else user.func.id
            if called == "register_task":
                return f"scope {ast.unparse(user.args[0])}", True
            if user not in getattr(statement, "decorator_list", ()):
                return ast.unparse(user.args[0]), False
        name = getattr(statement, "name", None)
        if name is None and isinstance(statement, ast.Assign):
            name = ast.unparse(statement.targets[0])
        return str(name or ast.unparse(call)), False

    def read_loop(self, call: ast.Call, statement: ast.stmt, holders: Sequence[ast.AST]) -> None:
        """`mm.microbatch(...)`, `mm.microbatch_loop(...)` or `mm.microbatch_scan(...)`."""

        def argument(name: str, position: int | None = None) -> WrittenValue | None:
            node = _keyword(call, name)
            if node is None and position is not None and position < len(call.args):
                node = call.args[position]
            return None if node is None or (isinstance(node, ast.Constant) and node.value is None) else _value(node)

        site = LoopSite(
            self.place(call, *_LOOPS),
            argument("size", 2),
            argument("count"),
            argument("schedule", 6),
            argument("custom_schedule") is not None,
            argument("slices"),
        )
        self.loops.append(FoundSite(self.facts, statement, site))


def _calls(node: ast.AST, holders: tuple[ast.AST, ...]) -> Iterator[tuple[ast.Call, tuple[ast.AST, ...]]]:
    """Calls in a statement, but not in the statements of its body, each with the nodes around it."""
    if isinstance(node, ast.Call):
        yield node, holders
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.stmt):
            yield from _calls(child, (*holders, node))


def _keywords(call: ast.expr) -> list[tuple[str | None, ast.expr]]:
    return [(keyword.arg, keyword.value) for keyword in call.keywords] if isinstance(call, ast.Call) else []


def _keyword(call: ast.expr, name: str) -> ast.expr | None:
    return next((value for word, value in _keywords(call) if word == name), None)


def _value(node: ast.expr) -> WrittenValue:
    literal = node.value if isinstance(node, ast.Constant) and isinstance(node.value, int | str) else None
    text = literal if isinstance(literal, str) else ast.unparse(node)
    return WrittenValue(text, literal)


def _pairs(node: ast.expr | None) -> Iterator[tuple[str, str]]:
    """(logical, device) pairs, as text: `None` is replicated."""
    if isinstance(node, ast.Tuple | ast.List):
        for item in node.elts:
            if isinstance(item, ast.Tuple | ast.List) and len(item.elts) == 2:
                logical, device = item.elts
                yield str(_value(logical)), "replicated" if _is_none(device) else str(_value(device))
    elif isinstance(node, ast.Dict):
        for key, device in zip(node.keys, node.values, strict=True):
            if key is not None:
                yield str(_value(key)), "replicated" if _is_none(device) else str(_value(device))
    elif node is not None:
        yield ast.unparse(node), "(an expression)"


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
