"""Loops and branches of JAX around a gradient: each is one program, in which no pipeline can run microbatches."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from mmrewrite.analysis.function_uses import FunctionUse, FunctionUses
from mmrewrite.codemod.site import Site
from mmrewrite.project.facts import Facts
from mmrewrite.project.reach import Reach, holds
from mmrewrite.source.functions import is_jit_decorator

_LOOPS = frozenset(("jax.lax.scan", "jax.lax.fori_loop", "jax.lax.while_loop", "jax.lax.map"))
_BRANCHES = frozenset(("jax.lax.cond", "jax.lax.switch"))

_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


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
    queue = list(_functions_around(site.facts, site.statement))
    seen: set[ast.AST] = set()
    while queue:
        facts, function = queue.pop(0)
        if function in seen or _is_compiled(facts, function):
            continue
        seen.add(function)
        found = uses.of(facts, function)
        if any(uses.compiles(use) for use in found):
            continue
        for use in found:
            statement = uses.statement(use.facts, use.node)
            yield from _given_to(use, statement)
            if use.is_call:
                queue += _functions_around(use.facts, statement)


def _functions_around(
    facts: Facts, statement: ast.stmt
) -> Iterator[tuple[Facts, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for holder in facts.names.around(statement):
        if isinstance(holder, _FUNCTIONS):
            yield facts, holder
            # A function around that one defines it, and runs it by its name.
            return


def _is_compiled(facts: Facts, function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    scope = facts.names.scopes[function]
    return any(is_jit_decorator(facts.names, decorator, scope) for decorator in function.decorator_list)


def _given_to(use: FunctionUse, statement: ast.stmt) -> Iterator[tuple[Facts, ast.Call, str]]:
    """The loops and conditionals that are given what is read, by itself, wrapped, or in a lambda that calls it."""
    scope = use.facts.names.scopes[statement]
    for call in (each for each in ast.walk(statement) if isinstance(each, ast.Call)):
        name = use.facts.names.resolve(call.func, scope) or ""
        if name in _LOOPS | _BRANCHES:
            for argument in (*call.args, *(keyword.value for keyword in call.keywords)):
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
