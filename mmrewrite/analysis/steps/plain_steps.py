"""What plain `jax.jit` compiles in a module: functions, and expressions such as imported names and lambdas."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mmrewrite.directives.vocabulary import STATEMENT, kind_of
from mmrewrite.project.facts import Facts
from mmrewrite.project.project import Project
from mmrewrite.project.reach import Reach, Reached, VisibleReach
from mmrewrite.source.calls import call_form
from mmrewrite.source.jit_kinds import JIT_KINDS, compiled_in
from mmrewrite.source.names import Scope
from mmrewrite.source.spans import span
from mmrewrite.values.array_libraries import CONTAINERS
from mmrewrite.values.flow import values_of
from mmrewrite.values.library import may_call_what_it_is_given
from mmrewrite.values.value import ANY_ITEM, By, Value

# Functions that compile, and that `mjit` takes the place of in no form.
_OTHERS = frozenset(("flax.nnx.jit_partial", "jax.experimental.pjit.pjit"))
_COMPILERS = tuple(form for kind in JIT_KINDS for form in (f"{kind}.", kind))
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


@dataclass(frozen=True, eq=False)
class PlainStep:
    """What plain `jax.jit` compiles: a function of the module, or an expression (an imported name, a lambda).

    Attributes:
        facts: The module.
        statement: The function, or the statement of the expression.
        compiled: The statement with the `jax.jit`: the function, where that is a decorator.
        argument: The expression.
    """

    facts: Facts
    statement: ast.stmt
    compiled: ast.stmt
    argument: ast.expr | None = None

    @property
    def name(self) -> str:
        """The step, as messages call it."""
        if self.argument is None:
            assert isinstance(self.statement, ast.FunctionDef)
            return f"`{self.statement.name}`"
        return "this lambda" if isinstance(self.argument, ast.Lambda) else f"`{ast.unparse(self.argument)}`"

    @property
    def position(self) -> tuple[int, int]:
        """The line and the column of a message about it."""
        if self.argument is None:
            return self.compiled.lineno, self.compiled.col_offset + 1
        return self.facts.source.position(span(self.facts.source, self.argument)[0])

    def reached(self, reach: Reach) -> Iterator[Reached]:
        """All that it leads to."""
        if self.argument is None:
            yield from reach.from_node(self.facts, self.statement)
        else:
            yield Reached(self.facts, self.argument)
            yield from reach.from_expression(self.facts, self.argument, self.facts.names.scopes[self.statement])


def reached_by_values(project: Project, step: PlainStep) -> Iterator[Reached]:
    """What a step leads to through what it calls: functions, and classes of objects, that come to it as values."""
    flow, reach, seen = values_of(project), VisibleReach(project), set[ast.AST]()
    queue = [*step.reached(reach)]
    step_value = flow.value_in(step.facts, step.argument) if step.argument is not None else None
    # It may be one of several.
    asked = [step_value, step_value.done(ANY_ITEM)] if step_value is not None else []
    for item in queue:
        yield item
        seen.add(item.node)
        called = [node.func for node in ast.walk(item.node) if isinstance(node, ast.Call)]
        # Methods that a library defines lead to the class of their object.
        owners = [node.value for node in called if isinstance(node, ast.Attribute)]
        for value in (*asked, *(flow.value_in(item.facts, node) for node in (*called, *owners))):
            for found in flow.may(value, _definition).answers:
                if isinstance(found.head, ast.AST) and found.head not in seen:
                    queue += reach.from_node(found.module.facts, found.head, seen)
        asked = []


def _definition(value: Value) -> Value | None:
    """A function, or an object of a class of the project."""
    is_function = isinstance(value.head, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    is_named = [step.kind for step in value.path] in ([], [By.BOUND])
    return value if value.is_made or (is_function and is_named) else None


def plain_steps(project: Project, facts: Facts, hinted: set[ast.stmt], codemod: str) -> Iterator[PlainStep]:
    """What plain `jax.jit` compiles: as a decorator, or in a call with a name, a lambda or another expression.

    Args:
        project: The project.
        facts: The module.
        hinted: Statements that are passed over.
        codemod: Where `ignore` names this codemod, or hints are switched off, statements are passed over too.
    """
    if not project.once("compilers are named", lambda: _names_compilers(project)):
        return
    names = facts.names
    functions: dict[ast.FunctionDef, ast.stmt] = {}
    expressions: list[PlainStep] = []
    for statement, scope in names.scopes.items():
        if statement in hinted or is_left(facts, statement, codemod):
            continue
        if isinstance(statement, ast.FunctionDef):
            if any(_decorates(project, facts, decorator, scope) for decorator in statement.decorator_list):
                functions[statement] = statement
        elif kind_of(statement) == STATEMENT:
            for node in names.calls.get(statement, ()):
                for compiled in _compiled(project, facts, node, scope):
                    bindings = (scope.owner(compiled.id) or scope).bindings if isinstance(compiled, ast.Name) else {}
                    made = bindings.get(getattr(compiled, "id", ""), ())
                    # `step = jax.jit(step)` compiles what the name was before.
                    found = [each.node for each in made if each.statement is not statement]
                    for each in found:
                        if isinstance(each, ast.FunctionDef):
                            functions.setdefault(each, statement)
                    is_function = bool(found) and all(isinstance(each, ast.FunctionDef) for each in found)
                    if not is_function and not _initialises(project, facts, compiled):
                        expressions.append(PlainStep(facts, statement, statement, compiled))
    yield from (PlainStep(facts, function, compiled) for function, compiled in functions.items())
    yield from expressions


def _compiled(project: Project, facts: Facts, node: ast.Call, scope: Scope) -> Sequence[ast.expr]:
    """What a call may compile: what it passes to a compiler, or beside a compiler to a function that may call it.

    `map(jax.jit, steps)` does, and code out of view may: `pool.submit(jax.jit, step)`.
    """
    hidden = (each.value for each in node.keywords if each.arg is None)
    compiled = compiled_in(node) or next(hidden, None)
    if compiled is not None and _compiles(project, facts, node.func, scope):
        return [compiled]
    form = call_form(facts.names, node, scope)
    given = [*form.positional, *(each.value for each in form.keywords)]
    if not given or not _are_values(project):
        return ()
    beside = [each for each in given if not _compiles(project, facts, each, scope)]
    flow = values_of(project)
    parts = (flow.value_in(facts, each).done(ANY_ITEM) for each in beside)
    if len(beside) == len(given) and not any(flow.may(each, _compiler, also=_bound).answers for each in parts):
        return ()
    callee = flow.may(flow.value_in(facts, form.function), _calls_it)
    return beside if True in callee.answers or callee.others or callee.unknown else ()


def _calls_it(value: Value) -> bool | None:
    """Whether a function is one that calls what it is given; of the program's own that is seen in it."""
    if isinstance(value.head, str):
        is_itself = not any(step.kind is By.CALL for step in value.path)
        return may_call_what_it_is_given(value.head) if is_itself else None
    is_method = isinstance(value.head, CONTAINERS) and bool(value.path)
    return False if is_method or isinstance(value.head, _DEFINITIONS) else None


def _decorates(project: Project, facts: Facts, decorator: ast.expr, scope: Scope) -> bool:
    """Whether a decorator may be a function that compiles, perhaps with options: `@jax.jit(...)`."""
    form = call_form(facts.names, decorator, scope) if isinstance(decorator, ast.Call) else None
    is_curried = form is not None and not form.positional and _compiles(project, facts, form.function, scope)
    return is_curried or _compiles(project, facts, decorator, scope)


def _compiles(project: Project, facts: Facts, node: ast.expr, scope: Scope) -> bool:
    """Whether what is called may be a function that compiles, or a `partial` of one."""
    name = facts.names.resolve(node, scope)
    is_named = name in JIT_KINDS or name in _OTHERS
    if is_named or isinstance(node, ast.Constant | ast.JoinedStr) or not _are_values(project):
        return is_named
    flow = values_of(project)
    return bool(flow.may(flow.value_in(facts, node), _compiler, also=_bound).answers)


def _compiler(value: Value) -> bool | None:
    """Whether a value is a function that compiles; what code out of view reads of one may be it, too."""
    name = value.head if isinstance(value.head, str) and not value.path else ""
    return name.startswith(_COMPILERS) or None


def _bound(value: Value) -> list[Value]:
    """What a `partial` binds."""
    return [each.value for each in value.partial.positional] if value.partial is not None else []


def _are_values(project: Project) -> bool:
    return project.once("compilers that are values", lambda: _compilers_are_values(project))


def _names_compilers(project: Project) -> bool:
    """Whether some module of the project has a word that stands in the name of each function that compiles.

    A step that a library compiles which names it alone is told where it runs: it gets arrays of several stages.
    """
    return any(word in module.facts.source.text for module in values_of(project).modules for word in ("jit", "pmap"))


def _compilers_are_values(project: Project) -> bool:
    """Whether the project names a function that compiles without calling it or decorating a function with it."""
    return any(
        not (isinstance(holder, ast.Call) and holder.func is use.node)
        and use.node not in getattr(holder, "decorator_list", ())
        for module in values_of(project).modules
        for use in module.uses(JIT_KINDS)
        for holder in (module.parents[use.node],)
    )


def is_left(facts: Facts, statement: ast.stmt, codemod: str) -> bool:
    """Whether `ignore` names a codemod at a statement, or hints are switched off there."""
    hints = facts.hints
    if not hints.ignored and not hints.ignored_statements and not hints.switched_off:
        return False
    start, _ = span(facts.source, statement)
    return hints.is_off_at(start) or codemod in hints.ignored_at(start, statement)


def _initialises(project: Project, facts: Facts, argument: ast.expr) -> bool:
    """Whether an expression makes parameters, which needs no task: `model.init`, or a lambda that calls it."""
    body = argument.body if isinstance(argument, ast.Lambda) else argument
    return is_initialiser(project, facts, body.func if isinstance(body, ast.Call) else body)


def is_initialiser(project: Project, facts: Facts, function: ast.expr) -> bool:
    """Whether a function is the `init` of a model, and none of the project's own."""
    if not isinstance(function, ast.Attribute) or function.attr not in ("init", "init_with_output", "lazy_init"):
        return False
    flow = values_of(project)
    return not flow.may(flow.value_in(facts, function), _definition).answers
