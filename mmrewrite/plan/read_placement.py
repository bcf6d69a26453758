"""Read meshes, steps, tasks and microbatch loops from the source of the rewritten modules. Runs none of their code.

Only literals have a known value; any other expression is kept as text.
"""

from __future__ import annotations

import ast
import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from mmrewrite.directives.vocabulary import DIRECTIVES, Role, may_have_hints
from mmrewrite.project.facts import RUNTIME, Facts, Loader, Mesh, SourceFile, Unreadable, has_mark, read_facts
from mmrewrite.project.project import Project
from mmrewrite.project.reach import Reach
from mmrewrite.results import Edit, Rewrite

# Functions that compile a step: the rewrites of directives, and one that users call themselves.
_COMPILERS = tuple(name for record in DIRECTIVES.values() if record.role is Role.COMPILE for name in record.runtime)
_LOOPS = tuple(name for record in DIRECTIVES.values() if record.role is Role.MICROBATCH for name in record.runtime)
_STEPS = frozenset(f"{RUNTIME}.{name}" for name in (*_COMPILERS, "flax.parallelize_step"))
_PARTIAL = "functools.partial"
_DEVICES = 8


@dataclass(frozen=True)
class Value:
    """An argument: its text in the source, and its value if it is a literal, else None."""

    text: str
    literal: int | str | None = None

    @property
    def number(self) -> int | None:
        """The literal, if it is a whole number. `True` is none, though Python's bool is an int."""
        return self.literal if isinstance(self.literal, int) and not isinstance(self.literal, bool) else None

    def __str__(self) -> str:
        return self.text if self.literal is not None else f"`{self.text}` (an expression)"


# The number of layers where the source gives none: `mm.stage_scan` takes it from its stack when it runs.
ALL_LAYERS = Value("*")


@dataclass(frozen=True, order=True)
class SourceLine:
    """A line of the user's file: that of the hint, or of the call if it was there before any rewrite."""

    path: str
    line: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


@dataclass(frozen=True)
class MeshSite:
    """A mesh. `unknown` names the sizes that are expressions; None if all are literals."""

    place: SourceLine
    name: str
    axes: tuple[tuple[str, Value], ...]
    logical_axes: tuple[tuple[str, str], ...]
    unknown: str | None = None

    @property
    def sizes(self) -> dict[str, int] | None:
        """Size of each axis; None if one of them is unknown."""
        sizes = {name: value.number for name, value in self.axes}
        known = {name: size for name, size in sizes.items() if size is not None}
        return known if known and len(known) == len(sizes) else None


@dataclass(frozen=True)
class StepSite:
    """A function that is compiled for a mesh."""

    place: SourceLine
    name: str


@dataclass(frozen=True)
class TaskSite:
    """A call or a scope that runs as a task, or a stack of layers that runs as one task for each slice of an axis.

    Attributes:
        place: The line of its hint or call.
        code: The function that is called, or the scope that is matched, as text.
        name: The task's name; None if it gets one when it runs.
        mesh_slice: The slice of the mesh, by axis; for layers their axis alone.
        layers: The number of layers that are dealt out to the slices of the axis; None for a single task.
        unknown: The expression that chooses the slice; None if the slice is known.
    """

    place: SourceLine
    code: str
    name: Value | None
    mesh_slice: tuple[tuple[str, Value], ...]
    layers: Value | None = None
    unknown: str | None = None


@dataclass(frozen=True)
class LoopSite:
    """A microbatch loop. `custom` says whether it has a `custom_schedule`."""

    place: SourceLine
    size: Value | None
    count: Value | None
    schedule: Value | None
    custom: bool


@dataclass(frozen=True)
class PlacedRegion:
    """A mesh, its steps, and the tasks and loops that they reach. Without a mesh: those that no step reaches."""

    mesh: MeshSite | None
    steps: tuple[StepSite, ...]
    tasks: tuple[TaskSite, ...]
    loops: tuple[LoopSite, ...]


@dataclass(frozen=True, eq=False)
class _FoundSite:
    """A site, the module and statement that hold it, and the mesh that a step names."""

    facts: Facts
    statement: ast.stmt
    site: MeshSite | StepSite | TaskSite | LoopSite
    mesh: ast.expr | None = None


@dataclass(eq=False)
class _Sites:
    meshes: dict[Mesh, _FoundSite] = field(default_factory=dict)
    steps: list[_FoundSite] = field(default_factory=list)
    tasks: list[_FoundSite] = field(default_factory=list)
    loops: list[_FoundSite] = field(default_factory=list)


def may_place(data: bytes) -> bool:
    """Whether a file can hold hints or calls of the runtime."""
    return may_have_hints(data) or RUNTIME.encode() in data


def read_regions(
    files: Sequence[SourceFile], rewrites: Iterable[Rewrite], load: Loader, codemods: Sequence[str]
) -> tuple[PlacedRegion, ...]:
    """The regions of a program, one for each mesh, in the order of the files.

    Args:
        files: The modules of the run.
        rewrites: The rewrites of some of them; the others are read as they are.
        load: Reads the file of a module that is imported from outside of the run.
        codemods: The names of codemods, which hints may mention.
    """
    results = {rewrite.path: rewrite for rewrite in rewrites}
    modules: list[Facts] = []
    edits: dict[str, tuple[Edit, ...]] = {}
    originals: dict[str, Facts] = {}
    for file in sorted(files, key=lambda file: file.path):
        rewrite = results.get(file.path)
        changed = rewrite is not None and rewrite.changed
        data = rewrite.result if rewrite is not None and changed else file.data
        if RUNTIME.encode() not in data and not has_mark(file):
            continue
        facts = read_facts(dataclasses.replace(file, data=data), codemods)
        original = read_facts(file, codemods)
        if isinstance(facts, Unreadable) or isinstance(original, Unreadable):
            continue
        modules.append(facts)
        originals[file.path] = original
        edits[file.path] = rewrite.edits if rewrite is not None and changed else ()
    project = Project(modules, load, codemods)
    sites = _Sites()
    for facts in modules:
        _Reader(facts, originals[facts.path], edits[facts.path], sites).read()
    return _regions(sites, project, Reach(project))


def devices_needed(regions: Iterable[PlacedRegion]) -> int:
    """The number of virtual devices that the meshes of known size need; at least eight."""
    sizes = [region.mesh.sizes for region in regions if region.mesh is not None]
    return max([_DEVICES, *(math.prod(known.values()) for known in sizes if known is not None)])


def _regions(sites: _Sites, project: Project, reach: Reach) -> tuple[PlacedRegion, ...]:
    steps: dict[_FoundSite | None, list[_FoundSite]] = {found: [] for found in sites.meshes.values()}
    for step in sites.steps:
        steps.setdefault(_mesh_of(step, sites.meshes), []).append(step)
    claimed: dict[_FoundSite | None, list[_FoundSite]] = {
        mesh: list(_reached(own, sites, project, reach)) for mesh, own in steps.items()
    }
    reached = {found for held in claimed.values() for found in held}
    rest = [found for found in (*sites.tasks, *sites.loops) if found not in reached]
    if rest:
        # Tasks that no step reaches can only run on the one mesh, if there is one.
        only_mesh = next(iter(sites.meshes.values())) if len(sites.meshes) == 1 else None
        claimed.setdefault(only_mesh, []).extend(rest)
    regions = []
    for mesh, held in claimed.items():
        own = [step.site for step in steps.get(mesh, ()) if isinstance(step.site, StepSite)]
        tasks = [found.site for found in sites.tasks if found in held and isinstance(found.site, TaskSite)]
        loops = [found.site for found in sites.loops if found in held and isinstance(found.site, LoopSite)]
        site = mesh.site if mesh is not None and isinstance(mesh.site, MeshSite) else None
        if site or own or tasks or loops:
            regions.append(PlacedRegion(site, tuple(own), tuple(tasks), tuple(loops)))
    return tuple(regions)


def _reached(steps: Iterable[_FoundSite], sites: _Sites, project: Project, reach: Reach) -> Iterator[_FoundSite]:
    """Tasks and loops that the steps reach."""
    candidates = [*sites.tasks, *sites.loops]
    for step in steps:
        facts = step.facts
        found = _inside(candidates, facts, [facts.names.top_level(step.statement)], reach)
        if not any(isinstance(each.site, TaskSite) for each in found):
            # The step takes its model as an argument: any code that its module reaches may be that model.
            found = _inside(candidates, facts, facts.tree.body, reach)
        if not any(isinstance(each.site, TaskSite) for each in found):
            for other in project.imported(facts):
                found |= _inside(candidates, other, other.tree.body, reach)
        yield from found


def _inside(
    candidates: Sequence[_FoundSite], facts: Facts, starts: Iterable[ast.stmt], reach: Reach
) -> set[_FoundSite]:
    nodes = {item.node for start in starts for item in reach.from_node(facts, start)}
    return {
        found
        for found in candidates
        if found.statement in nodes or any(holder in nodes for holder in found.facts.names.around(found.statement))
    }


def _mesh_of(step: _FoundSite, meshes: Mapping[Mesh, _FoundSite]) -> _FoundSite | None:
    """The mesh that a step names, else the only mesh, else None."""
    node, facts = step.mesh, step.facts
    if node is not None:
        scope = facts.scope_of(step.statement)
        resolved = facts.names.resolve(node, scope)
        for mesh, found in meshes.items():
            owner = found.facts.names
            if resolved is not None and resolved == f"{owner.name}.{mesh.name}" and mesh.scope is owner.scope:
                return found
            if isinstance(node, ast.Name) and node.id == mesh.name and scope.owner(node.id) is mesh.scope:
                return found
    return next(iter(meshes.values())) if len(meshes) == 1 else None


class _Reader:
    """Collects the calls of the runtime in one module into `sites`."""

    def __init__(self, facts: Facts, original: Facts, edits: Sequence[Edit], sites: _Sites) -> None:
        self.facts, self.original, self.edits, self.sites = facts, original, edits, sites
        self.readers: dict[str, Callable[[ast.Call, ast.stmt, Sequence[ast.AST]], None]] = {
            f"{RUNTIME}.Task": self.read_task,
            f"{RUNTIME}.stage": self.read_layers,
            f"{RUNTIME}.stage_scan": self.read_stacked_layers,
            f"{RUNTIME}.register_task": self.read_registration,
            **dict.fromkeys([f"{RUNTIME}.{name}" for name in _LOOPS], self.read_loop),
        }

    def read(self) -> None:
        for mesh in self.facts.meshes:
            if mesh.hint is None and isinstance(mesh.statement, ast.Assign):
                found = _FoundSite(self.facts, mesh.statement, self.mesh(mesh, mesh.statement.value))
                self.sites.meshes[mesh] = found
        for statement, scope in self.facts.names.scopes.items():
            for decorator in getattr(statement, "decorator_list", ()):
                if self.facts.names.resolve(decorator, scope) in _STEPS:
                    self.add_step(decorator, statement, getattr(statement, "name", ""), None)
            for call, holders in _calls(statement, ()):
                name = self.facts.names.resolve(call.func, scope)
                wrapped = self.facts.names.resolve(call.args[0], scope) if call.args else None
                if name in self.readers:
                    self.readers[name](call, statement, holders)
                elif name in _STEPS and call.args:
                    self.add_step(call, statement, ast.unparse(call.args[0]), _keyword(call, "mesh"))
                elif name == _PARTIAL and wrapped in _STEPS:
                    self.add_step(call, statement, getattr(statement, "name", ""), _keyword(call, "mesh"))
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
        self.sites.steps.append(_FoundSite(self.facts, statement, site, mesh))

    def read_task(self, call: ast.Call, statement: ast.stmt, holders: Sequence[ast.AST]) -> None:
        """`mm.Task(name=..., mesh_slice={...})`, wherever it is used."""
        code, is_scope = self.placed_code(call, statement, holders)
        name = _keyword(call, "name") or (call.args[0] if call.args else None)
        piece = _keyword(call, "mesh_slice")
        mesh_slice: tuple[tuple[str, Value], ...] = ()
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
        task_name = _value(name) if name is not None else Value(code, code) if is_scope else None
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

    def add_layers(self, statement: ast.stmt, call: ast.Call, function: str, code: str, layers: Value) -> None:
        """Keep layers that are dealt out along `axis=`, by default the axis `stage`."""
        axis = _keyword(call, "axis")
        name = Value('"stage"', "stage") if axis is None else _value(axis)
        unknown = None if isinstance(name.literal, str) else f"axis={name}"
        mesh_slice = ((str(name.literal or name.text), Value(":", ":")),)
        self.add_task(statement, TaskSite(self.place(call, function), code, None, mesh_slice, layers, unknown))

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
        self.sites.tasks.append(_FoundSite(self.facts, statement, site))

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

        def argument(name: str, position: int | None = None) -> Value | None:
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
        )
        self.sites.loops.append(_FoundSite(self.facts, statement, site))


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


def _value(node: ast.expr) -> Value:
    literal = node.value if isinstance(node, ast.Constant) and isinstance(node.value, int | str) else None
    text = literal if isinstance(literal, str) else ast.unparse(node)
    return Value(text, literal)


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
