"""Calls that ask for the program's own mesh or devices: where a step runs them, it stops.

In a step each task has a mesh of its own, and tracing has none, which JAX would find out at run time.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mmrewrite.analysis.meshes.schedules import STAGE, stage_axis
from mmrewrite.directives.collect import Hint
from mmrewrite.directives.vocabulary import Role
from mmrewrite.project.axis_names import DEVICE, layout_argument
from mmrewrite.project.facts import Facts
from mmrewrite.project.project import Project
from mmrewrite.project.reach import Reached, VisibleReach
from mmrewrite.source.calls import CallForm, call_form
from mmrewrite.source.functions import own_expressions
from mmrewrite.source.jit_kinds import is_jit_decorator
from mmrewrite.source.spans import span
from mmrewrite.values.flow import ValueFlow, values_of
from mmrewrite.values.value import By, Value

_SPEC = "jax.sharding.PartitionSpec"
_SHARDING = "jax.sharding.NamedSharding"
_SHARD_MAPS = frozenset(("jax.shard_map", "jax.experimental.shard_map.shard_map"))
_DEVICES = frozenset(("jax.devices", "jax.local_devices", "jax.sharding.SingleDeviceSharding"))
_MESHES = frozenset(("jax.sharding.Mesh", "jax.make_mesh"))
# Of other packages any function may enter a mesh. That of `jax.set_mesh` does not hold in a step.
_WITHOUT_MESHES = frozenset(("builtins", "contextlib", "flax", "jax", "numpy", "tempfile", "time", "tqdm", "warnings"))
_ORDERED = frozenset(("jax.debug.print", "jax.debug.callback"))
_REFS = frozenset(("jax.new_ref", "jax.array_ref"))
_REF_MARKERS = (b"new_ref", b"array_ref")
# What the bytes of a file with any request hold.
_MARKERS = (b"_constraint", b"device_put", b"shard_map", b"_shardings", b"explicit_axes", b"ordered", *_REF_MARKERS)
_FAILS = "in a step each task has a mesh of its own, and tracing has none, so the step fails here"

_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, eq=False)
class MeshRequest:
    """An expression that stops a step.

    Attributes:
        facts: Its module, which need not be one with hints.
        position: Its line and column.
        reason: What is wrong, and what to write.
        by: The module and the hint that lead to it.
    """

    facts: Facts
    position: tuple[int, int]
    reason: str
    by: tuple[Facts, Hint]


def mesh_requests(
    project: Project, modules: Sequence[Facts], logical: Collection[str] = frozenset()
) -> Iterator[MeshRequest]:
    """Requests in the functions and classes that steps and tasks lead to, initialisers left out.

    Args:
        project: The project.
        modules: The modules with hints.
        logical: The logical names of the project, which meshes of the program's own may have as axes.
    """
    every = [hint for facts in modules for hint in facts.hints.hints]
    axes = [(name, value.value) for hint in every if hint.record.role is Role.MESH for name, value in hint.named]
    sliced = frozenset(_sliced(hint) for hint in every if hint.record.role is Role.PLACE)
    meshes = _MeshesOfProgram(
        sets_mesh=any(_sets_mesh(facts) for facts in modules),
        axes=frozenset(name for name, _ in axes),
        wide=frozenset(name for name, size in axes if isinstance(size, ast.Constant) and size.value != 1),
        sliced=sliced or frozenset((frozenset((STAGE,)),)),
        # In a step without tasks a mesh of all devices will do.
        carried=frozenset((*logical, *(name for name, _ in axes))) if sliced else None,
    )
    flow, reach, hints = values_of(project), VisibleReach(project), _HintIndex()
    done: set[ast.AST] = set()
    seen: set[ast.stmt] = set()
    may_ask: dict[Facts, bool] = {}
    for facts in modules:
        for hint in facts.hints.hints:
            if hint.record.role is not Role.COMPILE and not hint.record.places_code:
                continue
            # What stands around a call of `jax.jit` runs before the step.
            begin = _definition_around(facts, hint.statement) if hint.record.places_code else hint.statement
            for reached in reach.from_node(facts, begin, done):
                if reached.facts not in may_ask:
                    may_ask[reached.facts] = any(marker in reached.facts.file.data for marker in _MARKERS)
                for statement in _statements(reached, hints) if may_ask[reached.facts] else ():
                    if statement not in seen:
                        seen.add(statement)
                        on_it = hints.on(reached.facts, statement)
                        yield from _RequestFinder(
                            meshes, flow, reached.facts, statement, on_it, (facts, hint)
                        ).requests()


class _HintIndex:
    """The hints of each statement, collected once for each module."""

    def __init__(self) -> None:
        self._modules: dict[Facts, dict[ast.stmt, list[Hint]]] = {}

    def on(self, facts: Facts, statement: ast.AST) -> Sequence[Hint]:
        if facts not in self._modules:
            found: dict[ast.stmt, list[Hint]] = {}
            for hint in facts.hints.hints:
                found.setdefault(hint.statement, []).append(hint)
            self._modules[facts] = found
        return self._modules[facts].get(statement, ()) if isinstance(statement, ast.stmt) else ()

    def is_compiled(self, facts: Facts, statement: ast.AST) -> bool:
        """Whether a hint has a statement compiled for the mesh."""
        return any(hint.record.role is Role.COMPILE for hint in self.on(facts, statement))


@dataclass(frozen=True)
class _MeshesOfProgram:
    """The meshes that the modules have together.

    Attributes:
        sets_mesh: Whether the program may enter a mesh of its own by `with mesh`.
        axes: The axes of the hinted meshes.
        wide: Those of more than one slice, by literal sizes.
        sliced: For each kind of task the axes of which it has one slice; None where that is computed.
        carried: The names of axes of other meshes that a constraint is carried over from; None for any.
    """

    sets_mesh: bool
    axes: frozenset[str]
    wide: frozenset[str]
    sliced: frozenset[frozenset[str] | None]
    carried: frozenset[str] | None

    def lacks(self, name: str) -> bool:
        """Whether no task can have the axis of a mesh of the program's own."""
        return self.carried is not None and name not in self.carried

    @property
    def within_tasks(self) -> list[str]:
        """The axes of several devices that tasks have, as far as that is written out."""
        return sorted(self.wide.difference(*[each for each in self.sliced if each is not None]))

    @property
    def have_wide_slices(self) -> bool:
        """Whether some task surely runs on several devices."""
        # A computed axis may be any of them.
        return any(len(self.wide) > 1 if sliced is None else self.wide - sliced for sliced in self.sliced)

    def are_of_all_tasks(self, names: Collection[str]) -> bool:
        """Whether the mesh of every task has these axes and no others."""
        return all(sliced is not None and self.axes - sliced == set(names) for sliced in self.sliced)


def _sliced(hint: Hint) -> frozenset[str] | None:
    """The axes along which the tasks of a hint have one slice each, None if that is computed."""
    if not hint.record.deals_layers:
        return frozenset(name for name, _ in hint.named)
    axis = stage_axis(hint)
    return None if axis is None else frozenset((axis,))


def _sets_mesh(facts: Facts) -> bool:
    """Whether a `with` may enter a mesh, which `jax.lax.with_sharding_constraint` finds in a step, too."""
    for statement, scope in facts.names.scopes.items():
        for item in statement.items if isinstance(statement, ast.With | ast.AsyncWith) else ():
            entered = item.context_expr
            entering = facts.names.resolve(entered.func, scope) if isinstance(entered, ast.Call) else None
            if entering is None or entering in _MESHES or entering.partition(".")[0] not in _WITHOUT_MESHES:
                return True
    return False


def _definition_around(facts: Facts, statement: ast.stmt) -> ast.stmt:
    """The definition that a task is on or in, of a method its class; the statement itself if there is none."""
    if not isinstance(statement, _Function | ast.ClassDef):
        around = (each for each in facts.names.around(statement) if isinstance(each, _Function | ast.ClassDef))
        statement = next(around, statement)
    holder = next(facts.names.around(statement), None)
    return holder if isinstance(holder, ast.ClassDef) else statement


def _statements(reached: Reached, hints: _HintIndex) -> Iterator[ast.stmt]:
    """The statements of a definition that its calls run: not those of initialisers, nor of methods compiled apart."""
    names = reached.facts.names
    is_step = hints.is_compiled(reached.facts, reached.node)
    stack: list[ast.AST] = [reached.node] if is_step or isinstance(reached.node, _Function | ast.ClassDef) else []
    while stack:
        node = stack.pop()
        if isinstance(node, _Function) and isinstance(names.parents.get(node), ast.ClassDef):
            compiled = any(is_jit_decorator(names, each, names.scopes[node]) for each in node.decorator_list)
            if node.name == "__init__" or (compiled and not hints.is_compiled(reached.facts, node)):
                continue
        if isinstance(node, ast.stmt):
            yield node
        children = (ast.stmt, ast.excepthandler, ast.match_case)
        stack.extend(reversed([child for child in ast.iter_child_nodes(node) if isinstance(child, children)]))


class _RequestFinder:
    """Looks through the expressions of one statement."""

    def __init__(
        self,
        meshes: _MeshesOfProgram,
        flow: ValueFlow,
        facts: Facts,
        statement: ast.stmt,
        hints: Sequence[Hint],
        by: tuple[Facts, Hint],
    ) -> None:
        self._meshes, self._flow, self._facts, self._statement, self._by = meshes, flow, facts, statement, by
        self._scope = facts.names.scopes[statement]
        self._is_compiled = any(hint.record.role is Role.COMPILE for hint in hints)
        self._rewritten = {hint.call for hint in hints}

    def requests(self) -> Iterator[MeshRequest]:
        calls = self._facts.names.calls.get(self._statement, ())
        for form in (call_form(self._facts.names, each, self._scope) for each in calls):
            # A `partial` that is called right away is read with that call.
            is_part = not form.is_called and any(each.func is form.call for each in calls)
            reason = self._of_call(form) if form.call not in self._rewritten and not is_part else None
            if reason is not None:
                yield self._request(form.call, reason)
        if not any(marker in self._facts.file.data for marker in _REF_MARKERS):
            return
        for node in own_expressions(self._statement):
            reason = self._of_ref(node) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) else None
            if reason is not None and isinstance(node, ast.Name):
                yield self._request(node, reason)

    def _request(self, node: ast.expr, reason: str) -> MeshRequest:
        position = self._facts.source.position(span(self._facts.source, node)[0])
        return MeshRequest(self._facts, position, reason, self._by)

    def _of_call(self, form: CallForm) -> str | None:
        function, arguments = self._resolve(form.function), form.positional
        keywords = {keyword.arg: keyword.value for keyword in form.keywords if keyword.arg is not None}
        if function in DEVICE:
            return self._of_constraint(form)
        if function == "jax.device_put":
            return self._of_device_put(arguments, keywords)
        if function in _SHARD_MAPS:
            return self._of_shard_map(function, arguments, keywords)
        if function in _ORDERED:
            return self._of_ordered(keywords)
        if function == "jax.sharding.explicit_axes":
            return f"`explicit_axes` needs a mesh with explicit axes, and {_FAILS}; call its function itself"
        if function == "jax.jit" and not self._is_compiled:
            return self._of_jit(keywords)
        return None

    def _of_jit(self, keywords: Mapping[str, ast.expr]) -> str | None:
        given = (name for name in ("in_shardings", "out_shardings") if name in keywords)
        named = next((name for name in given if self._has_spec(keywords[name])), None)
        if named is None:
            return None
        return f"`{named}=` has a PartitionSpec, which needs a mesh in context, and {_FAILS}; leave `{named}=` out"

    def _of_constraint(self, form: CallForm) -> str | None:
        spec = layout_argument(form)
        if spec is None:
            return None
        missing = [name for name in self._axes_of_own_mesh(spec) if self._meshes.lacks(name)]
        if missing:
            axis = next((f'"{axis}"' for axis in self._meshes.within_tasks), "None")
            axes = ", ".join(f"{name}={axis if name is missing[0] else None}" for name in missing)
            return (
                f"`{ast.unparse(form.function)}` lays a value out over a mesh of the program, and no task has its axis "
                f"`{missing[0]}`, so the step fails here; write `axes({axes})` beside the `mesh(...)` hint, which "
                "carries it over to the mesh of each task"
            )
        if self._meshes.sets_mesh or not self._made(spec, (_SPEC,)):
            return None
        cause = f"`{ast.unparse(form.function)}` has a PartitionSpec and no mesh, and {_FAILS}"
        names = self._axis_names(spec)
        if not names:
            return f"{cause}; write `{ast.unparse(form.positional[0])}` alone" if form.positional else None
        axes = ", ".join(f'{name}="{name}"' if name in self._meshes.axes else f"{name}=None" for name in names)
        return f"{cause}; write `axes({axes})` beside the `mesh(...)` hint, which makes it one of each task's mesh"

    def _of_device_put(self, arguments: Sequence[ast.expr], keywords: Mapping[str, ast.expr]) -> str | None:
        place = arguments[1] if len(arguments) > 1 else keywords.get("device")
        if place is None or not arguments:
            return None
        alone = f"write `{ast.unparse(arguments[0])}` alone"
        if self._has_spec(place):
            return f"`jax.device_put` has a PartitionSpec, which needs a mesh in context, and {_FAILS}; {alone}"
        if self._made(place, _DEVICES):
            return (
                "`jax.device_put` names a device, and in a step the tasks say where values are: if it is another one, "
                f"the step fails here; {alone}"
            )
        return None

    def _of_shard_map(
        self, function: str, arguments: Sequence[ast.expr], keywords: Mapping[str, ast.expr]
    ) -> str | None:
        advice = "write `shard_map` of `mmruntime` without `mesh=`, in a layer or a task"
        by_position = arguments[1] if function != "jax.shard_map" and len(arguments) > 1 else None
        mesh = keywords.get("mesh", by_position)
        if mesh is None:
            return f"`shard_map` without `mesh=` needs a mesh in context, and {_FAILS}; {advice}"
        made = [each.path[0].what.node for each in self._made(mesh, _MESHES)]
        if made and all(each is not None and self._meshes.are_of_all_tasks({*_texts(each)}) for each in made):
            return None
        return (
            "`shard_map` runs over a mesh of the program: where a task has a mesh with other axes, the step fails "
            f"here; {advice}"
        )

    def _of_ordered(self, keywords: Mapping[str, ast.expr]) -> str | None:
        ordered = keywords.get("ordered")
        if not self._meshes.have_wide_slices or ordered is None:
            return None
        value = self._flow.value_in(self._facts, ordered)
        if not self._flow.may(value, lambda each: True if _is_true(each) else None).answers:
            return None
        return (
            "JAX keeps no order of effects over several devices: where this runs on a stage of several, the step fails "
            "here; leave `ordered=True` out"
        )

    def _of_ref(self, node: ast.Name) -> str | None:
        """A `jax.Ref` that the module made."""
        owner = self._scope.owner(node.id)
        binding = self._facts.names.binding(node.id, self._scope)
        if owner is not self._facts.names.scope or binding is None or not isinstance(binding.value, ast.Call):
            return None
        if self._facts.names.resolve(binding.value.func, self._facts.names.scope) not in _REFS:
            return None
        return (
            f"`{node.id}` is a `jax.Ref` that is made outside of the step, on the devices of one program, so the step "
            f"fails here; pass its value, `{node.id}[...]`, as an argument, make the ref in the step, and return its "
            "last value"
        )

    def _resolve(self, node: ast.expr) -> str | None:
        return self._facts.names.resolve(node, self._scope)

    def _made(self, value: ast.expr | Value, names: Collection[str]) -> list[Value]:
        """What some functions may have given that an expression is, or a part of it."""

        def is_made(each: Value) -> Value | None:
            return each if each.head in names and [step.kind for step in each.path[:1]] == [By.CALL] else None

        value = value if isinstance(value, Value) else self._flow.value_in(self._facts, value)
        return [*self._flow.may(value, is_made).answers]

    def _has_spec(self, node: ast.expr) -> bool:
        """Whether an expression may be a spec or a display of some, not inside a sharding with a mesh."""
        if isinstance(node, ast.Tuple | ast.List):
            return any(map(self._has_spec, node.elts))
        return bool(self._made(node, (_SPEC,)))

    def _axes_of_own_mesh(self, node: ast.expr) -> list[str]:
        """The axes in a `NamedSharding` over a mesh that the program makes, without axes of one device."""
        found: dict[str, None] = {}
        for sharding in self._made(node, (_SHARDING,)):
            call = sharding.path[0].what
            mesh, spec = call.at(0, "mesh"), call.at(1, "spec")
            for made in self._made(mesh, _MESHES) if mesh is not None and spec is not None else ():
                single = _axes_of_one_device(made)
                found |= {name: None for name in self._axis_names(spec) if name not in single}
        return list(found)

    def _axis_names(self, spec: ast.expr | Value) -> list[str]:
        calls = (made.path[0].what.node for made in self._made(spec, (_SPEC,)))
        return list(dict.fromkeys(text for call in calls if call is not None for text in _texts(call)))


def _is_true(value: Value) -> bool:
    return isinstance(value.expression, ast.Constant) and value.expression.value is True


def _texts(node: ast.AST) -> list[str]:
    constants = (each.value for each in ast.walk(node) if isinstance(each, ast.Constant))
    return [each for each in constants if isinstance(each, str)]


def _axes_of_one_device(mesh: Value) -> set[str]:
    call = mesh.path[0].what.node
    given = call.args[:2] if call is not None else []
    parts = [list(each.elts) if isinstance(each, ast.Tuple | ast.List) else [each] for each in given]
    sizes, names = parts if len(parts) == 2 else ([], [])
    pairs = zip(sizes, names, strict=False)
    return {text for size, name in pairs if isinstance(size, ast.Constant) and size.value == 1 for text in _texts(name)}
