"""A `for` loop that accumulates over microbatches: the names that it carries, or why it cannot become a function."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from mmrewrite.analysis.loops.dataflow import (
    Flow,
    all_statements,
    assigned_in,
    direct_statements,
    first_place,
    leaving,
    refuse_shape,
    refuse_unclear_reader,
    root,
    targets,
)
from mmrewrite.analysis.steps.losses import looks_like_key
from mmrewrite.codemod.site import Site

# Their output may come in another order, but no value depends on it.
_HARMLESS = ("jax.debug.", "logging.", "absl.logging.")


def refuse_cutting(site: Site, loop: str) -> None:
    """Refuses arguments of a `microbatch` hint about cutting the batch, which this `loop` does itself."""
    for argument in site.hint.arguments:
        if argument.name not in ("count", "schedule", "memory_bytes", "sync", "all_gather", "accumulate"):
            site.refuse(
                f"{loop} cuts the batch itself, so `{argument.name}=` has no meaning; write `count=` with the number "
                "of its iterations, and `schedule=`"
            )


def carried_names(site: Site, loop: ast.For) -> list[str]:
    """The loop-carried names, in the order in which the loop assigns them.

    Refuses a loop whose body cannot become a function of one iteration: it leaves early, changes something besides
    local names, or a value of its last iteration is read after it.
    """
    refuse_shape(site, loop, "that accumulates gradients")
    scope = site.scope
    inside = set(all_statements([loop]))
    assigned = assigned_in(scope, inside)
    for statement in leaving(loop.body):
        site.refuse(
            f"`{type(statement).__name__.lower()}` in a loop that accumulates gradients: every microbatch must be "
            "computed, by the same code; write it without",
            statement,
        )
    _check_statements(site, loop.body, assigned)
    flow = Flow(site.facts, scope)
    exposed = flow.exposed_in(loop) & assigned
    carried = sorted(exposed, key=lambda name: first_place(loop, name))
    for name in carried:
        _check_carried(site, loop, name, inside)
    refuse_unclear_reader(site, loop, assigned)
    left = sorted((assigned - exposed) & flow.read_after(loop))
    if left:
        site.refuse(
            f"`{left[0]}` is read after the loop, where it has the value of the last iteration; add it up in the loop, "
            "or compute it after the loop",
            loop,
        )
    if not carried:
        site.refuse("the loop adds nothing up; hint the loop that accumulates the gradients", loop)
    return carried


def _check_carried(site: Site, loop: ast.For, name: str, inside: set[ast.stmt]) -> None:
    if looks_like_key(name):
        site.refuse(
            f"each iteration changes the random key `{name}` for the next, and microbatches do not wait for each "
            f"other; write `{name}s = jax.random.split({name}, ...)` above the loop and take one of them in each "
            "iteration, or fold in the number of the iteration",
            loop,
        )
    before = [
        binding
        for binding in site.scope.bindings[name]
        if binding.statement not in inside
        and (binding.kind == "parameter" or (binding.statement is not None and binding.statement.lineno < loop.lineno))
    ]
    if not before:
        site.refuse(f"`{name}` has no value before the loop; write `{name} = None` above it", loop)


def _check_statements(site: Site, statements: Iterable[ast.stmt], assigned: set[str]) -> None:
    """Refuses statements that a function of one iteration cannot have, or whose effects would change their order."""
    for statement in statements:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                continue
            case ast.Return() | ast.Delete() | ast.Global() | ast.Nonlocal():
                word = type(statement).__name__.lower().removesuffix("ete")
                site.refuse(f"`{word}` in a loop that accumulates gradients; move it out of the loop", statement)
            case ast.Expr(value=ast.Call() as call):
                _check_call(site, call, statement)
        for target in targets(statement):
            holder = root(target)
            if isinstance(holder, ast.Name) and holder.id in site.scope.outer:
                site.refuse(f"`{holder.id}` is `global` or `nonlocal`; add up in a name of the function", statement)
            if target is not holder and not (isinstance(holder, ast.Name) and holder.id in assigned):
                site.refuse(
                    f"`{site.text(target)}` is changed in the loop and made outside of it, and microbatches do not run "
                    "one after the other; add up in a name of its own, and store that after the loop",
                    statement,
                )
        if any(isinstance(node, ast.Yield | ast.YieldFrom | ast.Await) for node in ast.walk(statement)):
            site.refuse("`yield` or `await` in a loop that accumulates gradients; write it without", statement)
        _check_statements(site, direct_statements(statement), assigned)


def _check_call(site: Site, call: ast.Call, statement: ast.stmt) -> None:
    name = site.resolve(call.func) or ""
    if name != "builtins.print" and not name.startswith(_HARMLESS):
        site.refuse(
            f"`{site.text(call.func)}(...)` is called for what it changes, and microbatches do not run one after the "
            "other; add up in a name (`total = total + loss`), or do it after the loop",
            statement,
        )
