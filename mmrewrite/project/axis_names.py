"""Logical axis names that a program already has: constraints by name, rule tables, and annotations.

They count as hints only in a project with hints and a mesh, in its hinted modules and in the modules that these import.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mmrewrite.directives.collect import Argument, Hint
from mmrewrite.directives.vocabulary import CALL, CLASS, DEF, IMPLIED_LAYOUT, STATEMENT, Role, kind_of
from mmrewrite.project.facts import Adopt, Facts, Loader, SourceFile, read_facts
from mmrewrite.project.project import Project
from mmrewrite.results import HintReference
from mmrewrite.source.calls import CallForm, stars_of
from mmrewrite.source.functions import placed_expressions
from mmrewrite.source.jit_kinds import JIT_KINDS
from mmrewrite.source.names import Scope, all_arguments
from mmrewrite.source.spans import span
from mmrewrite.source.text import expression_in

MARKERS = (b"_constraint", b"axis_rules", b"AXIS_RULES", b"reshard", b"out_sharding=", b"unreplicate")

_FLAX = ("flax.linen", "flax.linen.spmd", "flax.linen.partitioning", "flax.core.spmd")
LOGICAL = frozenset(
    f"{module}.{name}" for module in _FLAX for name in ("with_logical_constraint", "with_sharding_constraint")
)
DEVICE = frozenset(("jax.lax.with_sharding_constraint", "jax.experimental.pjit.with_sharding_constraint"))
# Asks for the types of one explicit mesh.
RESHARD = "jax.sharding.reshard"
# Takes what the first device holds for one copy, and a step for the mesh keeps all copies together.
UNREPLICATE = "flax.jax_utils.unreplicate"
_TRANSLATORS = frozenset(
    f"{module}.{name}"
    for module in _FLAX
    for name in ("logical_to_mesh_sharding", "logical_to_mesh", "logical_to_mesh_axes")
)
_RULES = frozenset(
    f"{module}.{name}"
    for module in _FLAX
    for name in ("logical_axis_rules", "axis_rules", "set_logical_axis_rules", "set_axis_rules")
)
_SPEC = "jax.sharding.PartitionSpec"
_ANNOTATIONS = "jaxtyping."

Device = str | tuple[str, ...] | None


@dataclass(frozen=True)
class AxisRules:
    """A table from logical names to device axes, and its line in the source."""

    path: str
    line: int
    pairs: tuple[tuple[str, Device], ...]


def may_name_axes(data: bytes) -> bool:
    """Whether a file can hold a constraint by name or a rule table."""
    return any(marker in data for marker in MARKERS)


def with_axis_names(
    hinted: Sequence[Facts],
    others: Mapping[str, SourceFile],
    load: Loader,
    adopt: Adopt,
    axes: Sequence[tuple[str, Device]] = (),
    jaxtyping: bool = False,
) -> list[Facts]:
    """The hinted modules, and the modules among their transitive imports that name axes.

    Args:
        hinted: Modules with hints, or whose hints are rewritten already; the implied hints of each are filled in.
        others: Files of the run without hints, by place.
        load: Reads a file that an import leads to.
        adopt: The file at a place that may change though it has no hints, None if it may not.
        axes: Logical axis names of the configuration, and their device axes.
        jaxtyping: Whether the annotations of tasks are layouts.
    """
    meshes = [facts for facts in hinted if facts.meshes]
    if not meshes:
        return list(hinted)
    modules = [*hinted, *_reached(hinted, others, load, adopt)]
    project = Project(modules, load, ())
    groups = [
        (
            group,
            declared_names(group, axes),
            any(compiles_pmap(each, hint) for each in group for hint in each.hints.hints),
        )
        for group in map(project.connected, meshes)
    ]
    for facts in modules:
        mine = [group for group in groups if facts in group[0]]
        # Before the rewrite no import need connect a step and the module of its mesh.
        mine = mine or (groups if len(groups) == 1 else [])
        known = frozenset(name for _, names, _ in mine for name in names)
        facts.hints.axis_names = known
        copies = any(has_copies for _, _, has_copies in mine)
        facts.hints.implied = list(implied_hints(facts, known, jaxtyping, copies=copies)) if mine else []
    return modules


def _reached(hinted: Sequence[Facts], others: Mapping[str, SourceFile], load: Loader, adopt: Adopt) -> list[Facts]:
    """Modules that name axes, among the transitive imports of the hinted ones."""
    project = Project(hinted, load, ())
    known = {facts.file.place for facts in hinted}
    found: list[Facts] = []
    for place, facts in project.imported_by(hinted).items():
        if place not in known and may_name_axes(facts.file.data):
            file = others.get(place) or adopt(place)
            read = read_facts(file, ()) if file is not None and file.data == facts.file.data else None
            if isinstance(read, Facts):
                found.append(read)
    return sorted(found, key=lambda facts: facts.path)


def declared_names(modules: Sequence[Facts], configured: Sequence[tuple[str, Device]]) -> frozenset[str]:
    """The logical names of the project's `axes(...)` hints and configuration, else those of its rule tables."""
    names = {name for name, _ in configured}
    for facts in modules:
        for hint in facts.hints.hints:
            if hint.record.role is Role.AXES:
                names |= {name for name in _names_of(hint) if name is not None}
    return frozenset(names) or frozenset(name for rules in find_rules(modules) for name, _ in rules.pairs)


def given_names(project: Project, facts: Facts, configured: Sequence[tuple[str, Device]]) -> frozenset[str]:
    """All logical names that the `axes(...)` hints of a run or the configuration give; none if one is computed."""
    return project.once((given_names, facts, *configured), lambda: _given_names(project, facts, configured))


def _given_names(project: Project, facts: Facts, configured: Sequence[tuple[str, Device]]) -> frozenset[str]:
    hints = [hint for other in (facts, *project.facts.values()) for hint in other.hints.hints]
    names = [name for hint in hints if hint.record.role is Role.AXES for name in _names_of(hint)]
    known = {name for name in names if name is not None} | {name for name, _ in configured}
    return frozenset() if None in names else frozenset(known)


def _names_of(hint: Hint) -> Iterator[str | None]:
    """The logical names of an `axes(...)` hint, None for one that is computed."""
    yield from (name for name, _ in hint.named)
    for argument in hint.positional:
        first = argument.value.elts[:1] if isinstance(argument.value, ast.Tuple) else []
        yield from (ast.literal_eval(each) if _is_text(each) else None for each in first or [argument.value])


def compiles_pmap(facts: Facts, hint: Hint) -> bool:
    """Whether a hint has a `jax.pmap`, or a function like it, compiled for the mesh."""
    if hint.record.role is not Role.COMPILE:
        return False
    scope = facts.names.scopes[hint.statement]
    heads = getattr(hint.statement, "decorator_list", [hint.statement])
    nodes = (node for head in heads for node in ast.walk(head) if isinstance(node, ast.Name | ast.Attribute))
    kinds = (JIT_KINDS.get(facts.names.resolve(node, scope) or "") for node in nodes)
    return any(kind is not None and kind.has_rows for kind in kinds)


def implied_hints(facts: Facts, known: Collection[str], jaxtyping: bool, *, copies: bool = False) -> Iterator[Hint]:
    """The hints that the constraints and annotations of a module imply.

    Args:
        facts: The module.
        known: The logical names of the project; a `jax.lax.with_sharding_constraint` with none of them stays.
        jaxtyping: Whether the annotations of tasks are layouts.
        copies: Whether values of the program may be copies that a `jax.pmap` made, and a step for the mesh has now.
    """
    for statement, scope in facts.names.scopes.items():
        for call in facts.names.calls.get(statement, ()):
            arguments = _layout(facts, call, scope, known)
            if copies and takes_one_copy(facts, call, scope) and _can_be_replaced(statement, call):
                arguments = ()
            if arguments is not None:
                place = span(facts.source, call)
                if not facts.hints.is_off_at(place[0]):
                    yield _hint(facts, statement, CALL, arguments, place, call)
    for statement in _annotated(facts) if jaxtyping else ():
        start, _ = span(facts.source, statement)
        yield _hint(facts, statement, DEF, (_from_annotations(start),), (start, start + len("def")), None)


def takes_one_copy(facts: Facts, call: ast.Call, scope: Scope) -> bool:
    """Whether a call is Flax's `unreplicate` of one value."""
    is_one = len(call.args) == 1 and not call.keywords and not stars_of(call)
    return is_one and facts.names.resolve(call.func, scope) == UNREPLICATE


def _can_be_replaced(statement: ast.stmt, call: ast.Call) -> bool:
    return kind_of(statement) == STATEMENT and (call, False) in placed_expressions(statement)


def _layout(facts: Facts, call: ast.Call, scope: Scope, known: Collection[str]) -> tuple[Argument, ...] | None:
    function = facts.names.resolve(call.func, scope)
    if scope.function.kind == "function" and (function == RESHARD or sharding_keywords(facts, call, scope)):
        return ()
    if function not in LOGICAL and function not in DEVICE:
        return None
    spec = layout_argument(call)
    if spec is None:
        return None
    if function in DEVICE:
        translated = isinstance(spec, ast.Call) and facts.names.resolve(spec.func, scope) in _TRANSLATORS
        if translated and isinstance(spec, ast.Call) and spec.args:
            return _entries(facts, spec.args[0], scope)
        if _names_in(facts, spec, scope).isdisjoint(known):
            return None
    return _entries(facts, spec, scope)


def sharding_keywords(facts: Facts, call: ast.Call, scope: Scope) -> list[ast.keyword]:
    """The keyword arguments of a call that give its result a layout in its type: `out_sharding=P("data")`.

    Of functions of JAX, and of what cannot be seen, such as a module's attribute, which may hand on others by another
    name: `qkv_sharding=`. Initialisers of classes make parameters.
    """
    function = facts.names.resolve(call.func, scope)
    if not (function is None or function.startswith("jax.")) or function == "jax.sharding.auto_axes":
        return []
    around = scope.function.node
    if isinstance(around, ast.FunctionDef) and around.name == "__init__":
        return []
    return [
        keyword
        for keyword in call.keywords
        if keyword.arg is not None
        and (keyword.arg == "out_sharding" or (function is None and keyword.arg.endswith("_sharding")))
        and not isinstance(keyword.value, ast.Constant)
        and not _is_wrapped(facts, keyword.value, scope)
        and not _says_of_array(facts, keyword.value, scope)
    ]


def _is_wrapped(facts: Facts, value: ast.expr, scope: Scope) -> bool:
    """Whether the rewrite of an earlier run has been here."""
    return isinstance(value, ast.Call) and facts.names.resolve(value.func, scope) == "mmruntime.out_sharding"


def _says_of_array(facts: Facts, value: ast.expr, scope: Scope) -> bool:
    """Whether a value is what an array says of itself, which in a step asks for nothing."""
    calls = (node.func for node in ast.walk(value) if isinstance(node, ast.Call))
    return any(facts.names.resolve(callee, scope) == "jax.typeof" for callee in calls)


def stray_names(facts: Facts, call: ast.Call, scope: Scope, known: Collection[str]) -> list[str]:
    """Names in a constraint of `jax.lax` that are not `known` logical names, if others in it are."""
    spec = layout_argument(call)
    if spec is None or facts.names.resolve(call.func, scope) not in DEVICE:
        return []
    names = _names_in(facts, spec, scope)
    return [] if names.isdisjoint(known) else sorted(names.difference(known))


def layout_argument(call: ast.Call | CallForm) -> ast.expr | None:
    """The layout argument of a constraint: the second one, or by its keyword."""
    positional = call.positional if isinstance(call, CallForm) else call.args
    if len(positional) > 1:
        return positional[1]
    named = ("logical_axis_resources", "logical_axes", "shardings", "axis_resources")
    return next((keyword.value for keyword in call.keywords if keyword.arg in named), None)


def _entries(facts: Facts, spec: ast.expr, scope: Scope) -> tuple[Argument, ...]:
    """One argument for each dimension of a literal layout, else one `*` argument for all."""
    if isinstance(spec, ast.Call) and facts.names.resolve(spec.func, scope) == _SPEC and not spec.keywords:
        values = spec.args
    elif isinstance(spec, ast.Tuple | ast.List):
        values = spec.elts
    else:
        text = _text(facts, spec)
        return (Argument(None, f"*{text}" if isinstance(spec, _ATOMS) else f"*({text})", spec, _start(facts, spec)),)
    return tuple(Argument(None, _text(facts, value), value, _start(facts, value)) for value in values)


_ATOMS = (ast.Name, ast.Attribute, ast.Call, ast.Subscript)


def _names_in(facts: Facts, spec: ast.expr, scope: Scope) -> frozenset[str]:
    """The names in a literal `P(...)`, also one assigned to a name; none if an expression computes it."""
    if isinstance(spec, ast.Name):
        name = spec.id
        binding = facts.names.binding(name, scope)
        if binding is None or binding.value is None:
            return frozenset()
        spec, scope = binding.value, scope.owner(name) or scope
    if not isinstance(spec, ast.Call) or facts.names.resolve(spec.func, scope) != _SPEC or spec.keywords:
        return frozenset()
    parts = [part for value in spec.args for part in (value.elts if isinstance(value, ast.Tuple) else [value])]
    if not all(isinstance(part, ast.Constant) for part in parts):
        return frozenset()
    return frozenset(part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str))


def _hint(
    facts: Facts,
    statement: ast.stmt,
    kind: str,
    arguments: tuple[Argument, ...],
    place: tuple[int, int],
    call: ast.Call | None,
) -> Hint:
    line, column = facts.source.position(place[0])
    text = ", ".join(each.text if each.name is None else f"{each.name}={each.text}" for each in arguments)
    reference = HintReference(line, column, f"{IMPLIED_LAYOUT}({text})")
    ignored = facts.hints.ignored_at(place[0], statement)
    return Hint(
        IMPLIED_LAYOUT, arguments, statement, kind, *place, place[0], False, reference, ignored, call, implied=True
    )


def _text(facts: Facts, node: ast.expr) -> str:
    return facts.source.text[slice(*span(facts.source, node))]


def _start(facts: Facts, node: ast.expr) -> int:
    return span(facts.source, node)[0]


# Rule tables


def find_rules(modules: Sequence[Facts]) -> tuple[AxisRules, ...]:
    """The literal rule tables of some modules, without repetition."""
    found: dict[tuple[tuple[str, Device], ...], AxisRules] = {}
    for facts in modules:
        for value in _tables(facts):
            pairs = _pairs(value)
            if pairs:
                found.setdefault(pairs, AxisRules(facts.path, value.lineno, pairs))
    return tuple(found.values())


def _tables(facts: Facts) -> Iterator[ast.expr]:
    if b"axis_rules" not in facts.file.data.lower():
        return
    for statement, scope in facts.names.scopes.items():
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        names = [target.id for target in targets if isinstance(target, ast.Name)]
        value = getattr(statement, "value", None)
        if any(name.lower().endswith("axis_rules") for name in names) and isinstance(value, ast.expr):
            yield value
        for call in facts.names.calls.get(statement, ()):
            if call.args and facts.names.resolve(call.func, scope) in _RULES:
                table = call.args[0]
                binding = facts.names.binding(table.id, scope) if isinstance(table, ast.Name) else None
                yield binding.value if binding is not None and binding.value is not None else table


def _pairs(value: ast.expr) -> tuple[tuple[str, Device], ...]:
    """The pairs of a table; none unless all of it is literal."""
    if not isinstance(value, ast.Tuple | ast.List):
        return ()
    pairs: list[tuple[str, Device]] = []
    for pair in value.elts:
        if not isinstance(pair, ast.Tuple | ast.List) or len(pair.elts) != 2 or not _is_text(pair.elts[0]):
            return ()
        logical, device = pair.elts
        names = [each.value for each in getattr(device, "elts", [device]) if isinstance(each, ast.Constant)]
        if len(names) != len(getattr(device, "elts", [device])):
            return ()
        many = isinstance(device, ast.Tuple | ast.List)
        pairs.append((ast.literal_eval(logical), tuple(map(str, names)) if many else ast.literal_eval(device)))
    return tuple(pairs)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


# Annotations


def _from_annotations(start: int) -> Argument:
    return Argument("from_annotations", "True", ast.Constant(True), start)


def _annotated(facts: Facts) -> Iterator[ast.FunctionDef]:
    """Functions that are tasks, with annotations of jaxtyping and without a `shard` hint."""
    hints = list(facts.hints.hints)
    shaped = {hint.statement for hint in hints if hint.record.role is Role.LAYOUT and hint.kind == DEF}
    for hint in hints:
        if hint.record.role is not Role.PLACE or hint.kind not in (DEF, CLASS):
            continue
        inside = hint.statement.body if isinstance(hint.statement, ast.ClassDef) else []
        methods = [each for each in inside if isinstance(each, ast.FunctionDef) and each.name == "__call__"]
        functions = [hint.statement] if isinstance(hint.statement, ast.FunctionDef) else methods
        for function in functions:
            if function not in shaped and annotated_layouts(facts, function, frozenset(), "out"):
                yield function


def annotated_layouts(
    facts: Facts, function: ast.FunctionDef | ast.AsyncFunctionDef, known: Collection[str], result: str
) -> Mapping[str, str]:
    """The layout of each annotated parameter as the arguments of a `PartitionSpec`; the result's under `result`.

    Dimensions named like one of the `known` logical axes count, all of them if none is known. There is no layout where
    dimensions follow a part of unknown length.
    """
    scope = facts.scope_of(function)
    annotations = {argument.arg: argument.annotation for argument in all_arguments(function.args)}
    annotations[result] = function.returns
    layouts = {}
    for name, annotation in annotations.items():
        shape = _shape(facts, annotation, scope)
        entries = None if shape is None else _dimensions(shape, known)
        if entries and any(entry != "None" for entry in entries):
            layouts[name] = ", ".join(entries)
    return layouts


def _shape(facts: Facts, annotation: ast.expr | None, scope: Scope) -> str | None:
    """`"batch seq"` of `Float[Array, "batch seq"]`."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        annotation = expression_in(annotation.value.strip())
    if not isinstance(annotation, ast.Subscript) or not isinstance(annotation.slice, ast.Tuple):
        return None
    if not (facts.names.resolve(annotation.value, scope) or "").startswith(_ANNOTATIONS):
        return None
    shape = annotation.slice.elts[-1]
    return shape.value if isinstance(shape, ast.Constant) and isinstance(shape.value, str) else None


def _dimensions(shape: str, known: Collection[str]) -> list[str] | None:
    """The entries of a layout; None if dimensions follow a part of unknown length (`...` or `*name`)."""
    entries: list[str] = []
    words = shape.split()
    for index, word in enumerate(words):
        if word.startswith(("...", "*")):
            return entries if index == len(words) - 1 else None
        name = word.lstrip("#?").partition("=")[0]
        counts = name.isidentifier() and not name.startswith("_") and (not known or name in known)
        entries.append(f'"{name}"' if counts else "None")
    return entries
