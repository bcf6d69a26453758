"""Models that a step has put on several submeshes, and that code outside of steps for the mesh calls."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from mmrewrite.analysis.optimizer_calls import IN_A_FUNCTION, compiled_apart, works_on_all_arrays
from mmrewrite.directives.vocabulary import STATEMENT, Role, kind_of
from mmrewrite.project.facts import Facts
from mmrewrite.project.project import Project
from mmrewrite.project.reach import VisibleReach, holds
from mmrewrite.source.functions import COMPILERS, is_jit_decorator
from mmrewrite.source.names import Binding, Scope, all_arguments, dotted_name
from mmrewrite.source.spans import span

_NNX_JIT = "flax.nnx.jit"
_LIBRARIES = frozenset(("jax", "flax", "equinox", "haiku"))
# What these functions of the libraries give calls their first argument.
_WRAPPERS = frozenset(
    f"{prefix}{name}"
    for prefix in ("", "filter_")
    for name in ("jit", "vmap", "grad", "value_and_grad", "remat", "checkpoint")
)
_APPLY = frozenset(("apply", "apply_fn"))
# Members of a Flax `TrainState` that are functions, and lie nowhere.
_FUNCTIONS = _APPLY | {"tx"}
# What these make of arrays is a model again.
_MERGES = frozenset(("flax.nnx.merge", "equinox.combine"))

# Functions that call each other form circles.
_DEPTH = 4

# The placed names that a call computes with, what compiles the called function by plain `jax.jit`, and what to write
# instead, as `Evaluation` has it.
_Evaluated = tuple[tuple[str, ...], ast.stmt | None, str]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A call outside of steps for the mesh that computes with a model which a step has put on several submeshes.

    Attributes:
        facts: The module with the call.
        statement: The statement with the call.
        start: Its offset.
        names: The values on several submeshes that the call computes with, as the call has them.
        step: The step, as its call has it.
        line: The line of the step's call.
        compiled: The statement that compiles the called function by plain `jax.jit`, or defines it with that as a
            decorator; None if nothing compiles it.
        instead: What to write where the call is an optimizer's, which must not work on a copy; else empty.
        gathered: The other values that the statement's own hint copies.
    """

    facts: Facts
    statement: ast.stmt
    start: int
    names: tuple[str, ...]
    step: str
    line: int
    compiled: ast.stmt | None
    instead: str = ""
    gathered: tuple[str, ...] = ()

    @property
    def cause(self) -> str:
        """Why it does not work."""
        values = " and ".join(f"`{name}`" for name in self.names)
        return f"`{self.step}` (line {self.line}) puts {values} on the devices of several stages"

    @property
    def advice(self) -> str:
        """What is wrong, and what to write."""
        if self.instead:
            return f"{self.cause}, and this works on all of them at once, in one place; {self.instead}"
        values = ", ".join((*self.gathered, *self.names))
        gather = f"# mm: gather({values})"
        where = f"write `{gather}` on this statement, which then computes with a copy in one place"
        if kind_of(self.statement) != STATEMENT:
            where = f"write `copy = {values}  {gather}` above this statement, and use that copy in it"
        return (
            f"{self.cause}, and code that no step compiles runs in one place; {where}, or have `jax.jit` compile the "
            "function around it, and hint that with `# mm: mjit`"
        )


def evaluations(project: Project, modules: Sequence[Facts]) -> tuple[Evaluation, ...]:
    """Calls in the order of their modules and statements; looked for once in a project."""
    return project.once((evaluations, *modules), lambda: tuple(_evaluations(project, modules)))


def _evaluations(project: Project, modules: Sequence[Facts]) -> Iterator[Evaluation]:
    records = [hint.record for facts in modules for hint in facts.hints.hints]
    by_scope = any(record.places_scopes for record in records)
    places = by_scope or any(record.places_code for record in records)
    if places and any(record.role is Role.COMPILE for record in records):
        models = _PlacedModels(project, modules, by_scope)
        for facts in modules:
            yield from models.in_module(facts)


@dataclass(frozen=True, eq=False)
class _StepCall:
    """A statement that calls a step: the step, and the names that are on its devices afterwards."""

    statement: ast.stmt
    step: str
    names: frozenset[str]


class _PlacedModels:
    def __init__(self, project: Project, modules: Sequence[Facts], by_scope: bool) -> None:
        self._project, self._reach, self._by_scope = project, VisibleReach(project), by_scope
        hints = [(facts, hint) for facts in modules for hint in facts.hints.hints]
        self._tasks = [(facts, hint.statement) for facts, hint in hints if hint.record.places_code]
        self._steps = {hint.statement: facts for facts, hint in hints if hint.record.role is Role.COMPILE}
        self._objects = any(_compiles_objects(facts, step) for step, facts in self._steps.items())
        self._gathered = {
            hint.statement: tuple(argument.text for argument in hint.arguments)
            for _, hint in hints
            if hint.record.role is Role.GATHER
        }

    def in_module(self, facts: Facts) -> Iterator[Evaluation]:
        statements: dict[Scope, list[ast.stmt]] = {}
        for statement, scope in facts.names.scopes.items():
            if scope.kind in ("function", "module"):
                statements.setdefault(scope, []).append(statement)
        for scope, own in statements.items():
            calls = [call for statement in own for call in self._step_calls(facts, scope, statement)]
            for statement in own if calls else ():
                yield from self._evaluations(facts, scope, statement, calls)

    def _evaluations(
        self, facts: Facts, scope: Scope, statement: ast.stmt, steps: Sequence[_StepCall]
    ) -> Iterator[Evaluation]:
        """Those of one statement: the first that nothing compiles, and the first of each compiled function."""
        placed = _placed_at(facts, scope, statement, steps)
        for name, merging, merge in _merged(facts, scope):
            # `model = nnx.merge(graphdef, state)` behind the step
            there = _placed_at(facts, scope, merging, steps)
            source = _merged_from(facts, merge, scope, there)
            made = _StepCall(merging, "", frozenset((name,)))
            if source is not None and _is_after(facts, scope, name, made, statement, steps):
                placed.setdefault(name, there[_root(source)])
        gathered = self._gathered.get(statement, ())
        seen: set[ast.stmt | None] = set()
        for node in facts.names.calls.get(statement, ()) if placed else ():
            found = self._evaluated(facts, scope, node, placed, _DEPTH)
            if found is None:
                continue
            read, compiled, instead = found
            names = tuple(name for name in read if not any(f"{name}.".startswith(f"{each}.") for each in gathered))
            if names and compiled not in seen:
                seen.add(compiled)
                step, start = placed[_root(names[0])], span(facts.source, node)[0]
                line = step.statement.lineno
                yield Evaluation(facts, statement, start, names, step.step, line, compiled, instead, gathered)

    def _step_calls(self, facts: Facts, scope: Scope, statement: ast.stmt) -> Iterator[_StepCall]:
        for node in facts.names.calls.get(statement, ()):
            step = next(
                (where for where, _ in self._definitions(facts, node.func, scope) if where in self._steps), None
            )
            if step is None:
                continue
            targets = statement.targets if isinstance(statement, ast.Assign) else ()
            names = {each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)}
            if _compiles_objects(self._steps[step], step):
                arguments = (*node.args, *(keyword.value for keyword in node.keywords))
                names |= {argument.id for argument in arguments if isinstance(argument, ast.Name)}
            yield _StepCall(statement, ast.unparse(node.func), frozenset(names))

    def _evaluated(
        self,
        facts: Facts,
        scope: Scope,
        call: ast.Call,
        placed: Collection[str],
        depth: int,
        applying: Collection[str] = (),
    ) -> _Evaluated | None:
        """The placed names that a call computes with, what compiles the called function by plain `jax.jit`, and what
        to write instead, as `Evaluation` has it. `applying` are names of functions such as `state.apply_fn`.
        """
        function = call.func
        while isinstance(function, ast.Call) and function.args and _wraps(facts, function, scope):
            function = function.args[0]
        if isinstance(function, ast.Name) and function.id in placed:
            return ((function.id,), None, "") if self._may_be_model(facts, function, scope) else None
        if isinstance(function, ast.Call) and (merged := _merged_from(facts, function, scope, placed)):
            return (merged,), None, ""
        arguments = (*call.args, *(keyword.value for keyword in call.keywords))
        is_update = works_on_all_arrays(call, facts.names, scope)
        applies = isinstance(function, ast.Attribute) and function.attr in _APPLY
        if is_update or applies or (isinstance(function, ast.Name) and function.id in applying):
            reads = dict.fromkeys(name for each in arguments for name in _reads(each) if _root(name) in placed)
            instead = compiled_apart(call, facts.names, scope, objects=self._objects) if is_update else ""
            return (tuple(reads)[: 1 if is_update else None], None, instead) if reads else None
        for statement, where in self._definitions(facts, function, scope):
            if statement in self._steps or depth == 0:
                continue
            found = self._evaluated_in(where, statement, call, placed, depth, applying)
            if found is not None:
                return found
        return None

    def _evaluated_in(
        self,
        facts: Facts,
        statement: ast.stmt,
        call: ast.Call,
        placed: Collection[str],
        depth: int,
        applying: Collection[str],
    ) -> _Evaluated | None:
        """The same for the call of a function that a statement defines."""
        names, scope = facts.names, facts.names.scopes[statement]
        compiled: ast.stmt | None = None
        if isinstance(statement, ast.FunctionDef):
            if any(is_jit_decorator(names, decorator, scope) for decorator in statement.decorator_list):
                compiled = statement
        elif isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call) and statement.value.args:
            # `evaluate = nnx.jit(loss_fn)`
            if names.resolve(statement.value.func, scope) not in COMPILERS:
                return None
            inner = list(self._definitions(facts, statement.value.args[0], scope))
            if len(inner) != 1 or not isinstance(inner[0][0], ast.FunctionDef):
                return None
            # As `plain_steps` has it.
            compiled = inner[0][0] if inner[0][1] is facts else statement
            statement, facts = inner[0]
            names = facts.names
        if not isinstance(statement, ast.FunctionDef):
            return None
        parameters, applying = _parameters(statement, call, placed, applying)
        inner_scope = names.inner[statement]
        for name, _, merge in _merged(facts, inner_scope):
            source = _merged_from(facts, merge, inner_scope, parameters)
            if source is not None:
                parameters.setdefault(name, parameters[_root(source)] + source.removeprefix(_root(source)))
        calls = [
            (node, names.scopes[each])
            for each, where in names.scopes.items()
            if where is inner_scope
            for node in names.calls.get(each, ())
        ]
        if any(self._steps_with(facts, where, node, parameters) for node, where in calls):
            # It trains the model, and must have the model itself.
            return None
        for node, where in calls:
            found = self._evaluated(facts, where, node, parameters.keys(), depth - 1, applying)
            if found is not None:
                read, inside, instead = found
                instead = instead and IN_A_FUNCTION.format("nnx.jit" if self._objects else "jax.jit")
                given = tuple(parameters[_root(name)] + name.removeprefix(_root(name)) for name in read)
                return tuple(dict.fromkeys(given)), compiled or inside, instead
        return None

    def _steps_with(self, facts: Facts, scope: Scope, call: ast.Call, names: Collection[str]) -> bool:
        """Whether a call is one of a step for the mesh, with one of the names."""
        if not any(where in self._steps for where, _ in self._definitions(facts, call.func, scope)):
            return False
        arguments = (*call.args, *(keyword.value for keyword in call.keywords))
        return any(_root(name) in names for argument in arguments for name in _reads(argument))

    def _may_be_model(self, facts: Facts, name: ast.Name, scope: Scope) -> bool:
        """Whether a name leads to a task, or nothing says what it is."""
        owner = scope.owner(name.id)
        bindings = owner.bindings[name.id] if owner is not None else []
        if self._by_scope or any(not isinstance(binding.value, ast.Call) for binding in bindings):
            return True
        if owner is not None and any(name.id == merged for merged, _, _ in _merged(facts, owner)):
            return True
        reached = list(self._reach.from_expression(facts, name, scope))
        return any(holds(item, where, task) for item in reached for where, task in self._tasks)

    def _definitions(self, facts: Facts, node: ast.expr, scope: Scope) -> Iterator[tuple[ast.stmt, Facts]]:
        """The statements that define or assign what an expression names, and their modules."""
        found: list[tuple[Facts, Binding]] = []
        if isinstance(node, ast.Name) and (owner := scope.owner(node.id)) is not None:
            found = [(facts, binding) for binding in owner.bindings[node.id] if binding.target is None]
        if not found and (dotted := dotted_name(node)) is not None:
            qualified = facts.names.resolve_dotted(dotted, scope)
            known = self._project.definition(qualified, facts) if qualified else None
            found = [known] if known is not None else []
        for where, binding in found:
            if binding.statement is not None and binding.statement in where.names.scopes:
                yield binding.statement, where


def _placed_at(facts: Facts, scope: Scope, statement: ast.stmt, steps: Sequence[_StepCall]) -> dict[str, _StepCall]:
    """The names that steps have put on several submeshes when a statement runs, and the call that did it."""
    placed: dict[str, _StepCall] = {}
    for call in steps:
        for name in call.names:
            if _is_after(facts, scope, name, call, statement, steps):
                placed.setdefault(name, call)
    return placed


def _merged(facts: Facts, scope: Scope) -> Iterator[tuple[str, ast.stmt, ast.Call]]:
    """The names of a scope that hold a model made of its arrays, `model = nnx.merge(...)`, each with its statement."""
    for name, bindings in scope.bindings.items():
        value, statement = bindings[0].value, bindings[0].statement
        if (
            len(bindings) == 1
            and isinstance(value, ast.Call)
            and statement is not None
            and _is_merge(facts, value, scope)
        ):
            yield name, statement, value


def _merged_from(facts: Facts, call: ast.Call, scope: Scope, placed: Collection[str]) -> str | None:
    """The placed name of whose arrays a call makes a model, None if it is no such call."""
    if not _is_merge(facts, call, scope):
        return None
    return next((name for each in call.args for name in _reads(each) if _root(name) in placed), None)


def _is_merge(facts: Facts, call: ast.Call, scope: Scope) -> bool:
    return facts.names.resolve(call.func, scope) in _MERGES


def _is_after(
    facts: Facts, scope: Scope, name: str, call: _StepCall, statement: ast.stmt, steps: Sequence[_StepCall]
) -> bool:
    """Whether a statement sees what the call of a step has left in a name."""
    if statement is call.statement:
        return False
    loops = {each for each in facts.names.around(call.statement) if isinstance(each, ast.For | ast.While)}
    shared = loops.intersection(facts.names.around(statement))
    before, after = call.statement.lineno, statement.lineno
    if after < before and not shared:
        return False
    bound = (binding.statement for binding in scope.bindings.get(name, ()))
    calling = {each.statement for each in steps}
    others = [each for each in bound if each is not None and each not in calling]
    if after > before:
        return not any(before < each.lineno < after for each in others)
    return not any(shared.intersection(facts.names.around(each)) for each in others)


def _compiles_objects(facts: Facts, step: ast.stmt) -> bool:
    """Whether a step changes objects among its arguments, as those of `nnx.jit` do."""
    scope = facts.names.scopes[step]
    nodes = step.decorator_list if isinstance(step, ast.FunctionDef) else [step]
    names = (each for node in nodes for each in ast.walk(node) if isinstance(each, ast.Name | ast.Attribute))
    return any(facts.names.resolve(each, scope) == _NNX_JIT for each in names)


def _parameters(
    function: ast.FunctionDef, call: ast.Call, placed: Collection[str], applying: Collection[str]
) -> tuple[dict[str, str], frozenset[str]]:
    """Parameters that a call gives placed values, with their names in the call, and those that it gives `apply_fn`."""
    arguments = function.args
    positional = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    known = {argument.arg for argument in all_arguments(arguments)}
    given = [*zip(positional, call.args, strict=False), *((each.arg, each.value) for each in call.keywords)]
    found: dict[str, str] = {}
    applies: set[str] = set()
    for name, value in given:
        dotted = dotted_name(value)
        if name not in known or dotted is None:
            continue
        last = dotted.rpartition(".")[2]
        if last in _APPLY or dotted in applying:
            applies.add(str(name))
        elif last not in _FUNCTIONS and _root(dotted) in placed:
            found[str(name)] = dotted
    return found, frozenset(applies)


def _wraps(facts: Facts, call: ast.Call, scope: Scope) -> bool:
    library, _, name = (facts.names.resolve(call.func, scope) or "").partition(".")
    return library in _LIBRARIES and name.rpartition(".")[2] in _WRAPPERS


def _root(dotted: str) -> str:
    return dotted.partition(".")[0]


def _reads(node: ast.expr) -> Iterator[str]:
    """Names that an expression reads outside of calls, which may copy: `state.params` in `{"params": state.params}`."""
    dotted = dotted_name(node)
    if dotted is not None:
        if dotted.rpartition(".")[2] not in _FUNCTIONS:
            yield dotted
    elif not isinstance(node, ast.Call):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                yield from _reads(child)
