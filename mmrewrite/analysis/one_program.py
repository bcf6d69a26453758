"""Loops and branches of JAX around a gradient or a step: each is one program, in which no pipeline can run."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mmrewrite.analysis.objects.function_reach import FunctionReach
from mmrewrite.analysis.objects.function_uses import FunctionUse, FunctionUses
from mmrewrite.analysis.steps.gradients import GRADIENTS
from mmrewrite.analysis.steps.plain_steps import is_left
from mmrewrite.codemod.site import Site
from mmrewrite.directives.vocabulary import Role
from mmrewrite.project.facts import Facts
from mmrewrite.project.project import Project
from mmrewrite.project.reach import Reach, VisibleReach, holds
from mmrewrite.source.functions import function_around, is_jit_decorator
from mmrewrite.source.names import Scope
from mmrewrite.source.spans import span

# The positions and keywords of the functions that they run.
_LOOPS = {
    "jax.lax.scan": {0: "f"},
    "jax.lax.fori_loop": {2: "body_fun"},
    "jax.lax.while_loop": {0: "cond_fun", 1: "body_fun"},
    "jax.lax.map": {0: "f"},
}
_BRANCHES = {
    "jax.lax.cond": {1: "true_fun", 2: "false_fun"},
    "jax.lax.switch": {1: "branches"},
}
_PROGRAMS = _LOOPS | _BRANCHES
# What runs a function with tracers of its own, outside of any program.
_TRANSFORMATIONS = {
    name: {0: "fun"}
    for name in (
        *GRADIENTS,
        *(f"jax.{name}" for name in ("vmap", "vjp", "jvp", "linearize", "jacfwd", "jacrev", "hessian", "checkpoint")),
    )
}
_RUN = _PROGRAMS | _TRANSFORMATIONS


@dataclass(frozen=True, eq=False)
class InlinedStep:
    """A loop, a conditional or a transformation of JAX that runs a step for the mesh as a part of its own.

    Attributes:
        facts: The module.
        position: The line and the column of the call.
        reason: What becomes of the step, and what to write.
    """

    facts: Facts
    position: tuple[int, int]
    reason: str


def inlined_steps(project: Project, modules: Sequence[Facts], codemod: str) -> Iterator[InlinedStep]:
    """Such calls, in the order of their modules, but where `ignore` names this codemod.

    A step that a transformation in another step is given is a part of that one in any case.
    """
    steps = [
        (facts, hint.statement) for facts in modules for hint in facts.hints.hints if hint.record.role is Role.COMPILE
    ]
    found = list(_calls_of(steps, FunctionReach(project), modules)) if steps else []
    reach = VisibleReach(project)
    inside = [item for step in steps for item in reach.from_node(*step)] if found else []
    for facts, statement, call, name in found:
        if is_left(facts, statement, codemod):
            continue
        if name in _PROGRAMS or not any(holds(item, facts, statement) for item in inside):
            position = facts.source.position(span(facts.source, call)[0])
            yield InlinedStep(facts, position, _reason(name))


def _calls_of(
    steps: Sequence[tuple[Facts, ast.stmt]], reach: Reach, modules: Sequence[Facts]
) -> Iterator[tuple[Facts, ast.stmt, ast.Call, str]]:
    """The calls that run a step: the module, the statement, the call and its full name."""
    for facts in modules:
        for statement, scope in facts.names.scopes.items():
            for call in facts.names.calls.get(statement, ()):
                name = facts.names.resolve(call.func, scope)
                if name in _RUN and _runs_any(reach, facts, call, name, scope, steps):
                    yield facts, statement, call, name


def _runs_any(
    reach: Reach, facts: Facts, call: ast.Call, name: str, scope: Scope, steps: Sequence[tuple[Facts, ast.stmt]]
) -> bool:
    """Whether a function that a call runs leads to a step."""
    return any(
        holds(item, *step)
        for function in _functions_of(call, name)
        for item in reach.from_expression(facts, function, scope)
        for step in steps
    )


def _functions_of(call: ast.Call, name: str) -> Iterator[ast.expr]:
    """The functions that a loop, a conditional or a transformation runs."""
    places = _RUN[name]
    yield from (argument for position, argument in enumerate(call.args) if position in places)
    yield from (keyword.value for keyword in call.keywords if keyword.arg in places.values())


def _reason(name: str) -> str:
    if name in _TRANSFORMATIONS:
        return (
            f"`{name}` traces through the step for the mesh that it is given, which then runs operation by operation, "
            f"where its arguments are; write `# mm: mjit` where a function is compiled that calls `{name}` itself"
        )
    if name in _BRANCHES:
        advice = "call the step outside of it, and let an `if` of Python decide where the condition is a plain value"
    else:
        advice = "write the loop in Python: steps are issued without waiting for each other there too"
    return (
        f"`{name}` is one program, so that the step for the mesh which it runs is a part of that one, and runs where "
        f"its arguments are; {advice}"
    )


def refuse_one_program(site: Site) -> None:
    """Refuse microbatches of tasks in a function that a loop or a conditional of JAX runs."""
    found = next(_programs_around(site), None)
    if found is None or not _reaches_task(site):
        return
    facts, call, name = found
    where = f"line {call.lineno}" if facts is site.facts else f"line {call.lineno} of {facts.path}"
    if name in _BRANCHES:
        advice = (
            "compute the gradients in front of it, and let its branches choose between the old values and the new ones"
        )
    else:
        advice = "compile the function that it repeats, `# mm: mjit`, and write the loop in Python"
    site.refuse(
        f"`{name}` on {where} runs these microbatches, and is one program, in one place, with the parameters of all "
        f"stages, so that there is no pipeline; {advice}"
    )


def _programs_around(site: Site) -> Iterator[tuple[Facts, ast.Call, str]]:
    """The loops and conditionals that are given a function which runs the site, and their full names."""
    uses = FunctionUses(site.project)
    queue = [(site.facts, site.statement)]
    seen: set[ast.AST] = set()
    for facts, statement in queue:
        # One around that only defines it, and runs it by its name.
        function = function_around(facts.names, statement)
        if function is None or function in seen or _is_compiled(facts, function):
            continue
        seen.add(function)
        found = uses.of(facts, function)
        if any(uses.compiles(use) for use in found):
            continue
        for use in found:
            where = uses.statement(use.facts, use.node)
            yield from _given_to(use, where)
            if use.is_call:
                queue.append((use.facts, where))


def _is_compiled(facts: Facts, function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    scope = facts.names.scopes[function]
    return any(is_jit_decorator(facts.names, decorator, scope) for decorator in function.decorator_list)


def _given_to(use: FunctionUse, statement: ast.stmt) -> Iterator[tuple[Facts, ast.Call, str]]:
    """The loops and conditionals that are given what is read, by itself, wrapped, or in a lambda that calls it."""
    scope = use.facts.names.scopes[statement]
    for call in (each for each in ast.walk(statement) if isinstance(each, ast.Call)):
        name = use.facts.names.resolve(call.func, scope) or ""
        if name in _PROGRAMS:
            for argument in _functions_of(call, name):
                functions = (each for each in ast.walk(argument) if isinstance(each, ast.Lambda))
                holders = functions if use.is_call else (argument,)
                if any(use.node is each for holder in holders for each in ast.walk(holder)):
                    yield use.facts, call, name


def _reaches_task(site: Site) -> bool:
    tasks = [
        (facts, hint.statement)
        for facts in site.project.facts.values()
        for hint in facts.hints.hints
        if hint.record.places_code
    ]
    reached = Reach(site.project).from_node(site.facts, site.statement)
    return any(holds(item, *task) for item in reached for task in tasks)
