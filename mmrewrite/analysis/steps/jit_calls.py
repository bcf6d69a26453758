"""The forms in which a program compiles a function: as a call, in two steps, as a decorator."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from mmrewrite.analysis.steps.compilers import Compiler, compiler, curried, names_in
from mmrewrite.codemod.site import Site
from mmrewrite.project.facts import Facts
from mmrewrite.source.calls import stars_of
from mmrewrite.source.jit_kinds import JIT_KINDS, compiled_in
from mmrewrite.values.flow import ValueFlow, values_of
from mmrewrite.values.library import MAPS
from mmrewrite.values.value import ELEMENT, By, Decorated, Value

# Other functions that compile: why `mjit` cannot replace them, and what to write.
_OTHERS = {
    "flax.linen.jit": "`nn.jit` compiles a module within a step; compile the whole step with `jax.jit`, and hint that",
    "haiku.jit": "`hk.jit` carries Haiku's state along; apply `hk.transform` to the whole step, compile what it gives "
    "with `jax.jit`, and hint that",
    "jax.experimental.pjit.pjit": "`pjit` is called `jax.jit` today; run `mmrewrite modernize` first",
}

# A compiled step is many XLA programs that Python launches, so JAX cannot trace through it.
_TRANSFORMATIONS = frozenset(
    f"jax.{name}"
    for name in (
        "grad",
        "value_and_grad",
        "vmap",
        "jacfwd",
        "jacrev",
        "jvp",
        "vjp",
        "linearize",
        "hessian",
        "checkpoint",
    )
)

# Methods of the result of `jax.jit` that a compiled step lacks, and the nearest method that it has.
_ABSENT = {
    "lower": "plan",
    "trace": "plan",
    "eval_shape": "plan",
    "clear_cache": "explain",
    "_cache_size": "explain",
}


_GETTERS = ("attrgetter", "methodcaller")


@dataclass(frozen=True)
class Jit:
    """A call that compiles: `jax.jit(f, ...)`, also as `fun=f`, `jax.jit(...)(f)` or `partial(jax.jit, ...)(f)`.

    `compiler` stands for `jax.jit`, and may be another function that compiles.
    """

    call: ast.Call
    function: ast.expr
    keywords: tuple[ast.keyword, ...]
    compiler: Compiler


def jit_call(site: Site, directive: str) -> Jit:
    """The only call in the hint's statement that compiles; refuses other numbers, and uses that a pipeline lacks."""
    statement = site.statement
    found = list(_jits(site, statement))
    if len(found) > 1:
        site.refuse("more than one `jax.jit` in this statement; give each a statement of its own")
    if not found:
        _refuse_others(site, (call.func for call in site.calls(statement)))
        site.refuse(
            f"`{directive}` replaces `jax.jit`, and there is none here; hint the statement that calls `jax.jit`"
            f"{_made_where(site)}"
        )
    (jit,) = found
    for node in ast.walk(statement):
        if isinstance(node, ast.Call) and jit.call in node.args and site.resolve(node.func) in _TRANSFORMATIONS:
            name = site.text(node.func)
            site.refuse(f"`{name}` of a compiled step is not cut into tasks; put `jax.jit` around `{name}(...)`", node)
        if isinstance(node, ast.Attribute) and node.value is jit.call and node.attr in _ABSENT:
            _refuse_absent(site, site.facts, node, node.attr)
        if isinstance(node, ast.Call) and node.func is jit.call and site.facts.names.is_repeated(site.statement):
            site.refuse(
                "a step that is compiled where it is called is planned anew in each iteration; write "
                f"`step = {site.text(jit.call)}` above the loop, and hint that",
                jit.call,
            )
    refuse_uses(site, jit.call)
    return jit


def jit_decorator(
    site: Site, function: ast.FunctionDef | ast.AsyncFunctionDef
) -> tuple[int, Compiler, Sequence[ast.keyword]] | None:
    """Position of the decorator that compiles the function, which function it is, and its options; None without one."""
    for index, decorator in enumerate(function.decorator_list):
        found = _in_decorator(site, decorator)
        if found is not None:
            refuse_uses(site, function)
            return index, *found
    _refuse_others(site, names_in(function.decorator_list))
    return None


def _in_decorator(site: Site, decorator: ast.expr) -> tuple[Compiler, Sequence[ast.keyword]] | None:
    """`@jax.jit`, `@jax.jit(...)` or `@functools.partial(jax.jit, ...)`."""
    if isinstance(decorator, ast.Call):
        return curried(site, decorator)
    found = compiler(site, decorator)
    return (found, ()) if found is not None else None


def refuse_uses(site: Site, made: ast.Call | ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    """Refuses a step on which the program calls methods that only the result of `jax.jit` has, such as `lower`."""
    flow = values_of(site.project)

    def is_step(value: Value) -> bool | None:
        if isinstance(value.head, Decorated):
            return value.head.definition is made or None
        calls = [step.what.node for step in value.path if step.kind is By.CALL] if isinstance(value.head, str) else ()
        return made in calls[-1:] or None

    for name, node, owner in site.project.once("methods of steps", lambda: [*_reads_of_methods(flow)]):
        if owner.head is not made and flow.may(owner, is_step).answers:
            _refuse_absent(site, owner.module.facts, node, name)


def _reads_of_methods(flow: ValueFlow) -> Iterator[tuple[str, ast.expr, Value]]:
    """Where methods that steps lack are read, each with its name, the expression, and the object that has it."""
    for name in _ABSENT:
        for module, node in flow.stores.reads(name):
            owner = node.value if isinstance(node, ast.Attribute) else next(iter(getattr(node, "args", ())), node)
            yield name, node, Value(module, owner)
    for module in flow.modules:
        for head in module.heads.get("getattr", ()):
            match module.parents[head]:
                case ast.Call(args=[owner, text, *_]) as call if not isinstance(text, ast.Constant):
                    for name in flow.texts(Value(module, text)).names(_ABSENT):
                        yield from [(name, call, Value(module, owner))] if name in _ABSENT else ()
                case _:
                    pass
        for pattern in module.nodes_of(ast.MatchClass):
            holder = module.parents[module.parents[pattern]]
            if isinstance(holder, ast.Match):
                for name in _ABSENT.keys() & set(pattern.kwd_attrs):
                    yield name, holder.subject, Value(module, holder.subject)
        if any(name in module.facts.source.text for name in _GETTERS):
            for call in module.nodes_of(ast.Call):
                is_map = len(call.args) == 2 and module.full_name(call.func) in MAPS
                given = Value(module, call.args[1], (ELEMENT,)) if is_map else None
                if call.args:
                    for name in flow.may(Value(module, call.args[0] if is_map else call.func), _gets).answers:
                        yield name, call, given or Value(module, call.args[0])


def _gets(value: Value) -> str | None:
    """The method that `attrgetter("lower")` or `methodcaller("lower", x)` reads, which steps lack."""
    is_getter = value.outside in ("operator.attrgetter()", "operator.methodcaller()")
    first = value.path[0].what.first() if is_getter else None
    text = getattr(first.expression, "value", None) if first is not None else None
    return text if text in _ABSENT else None


def _refuse_absent(site: Site, facts: Facts, node: ast.expr, name: str) -> None:
    is_here = facts is site.facts
    where = "" if is_here else f" on line {node.lineno} of {PurePath(facts.path).name}"
    used = "is used" if isinstance(node, ast.Attribute) else f"reads `{name}`"
    site.refuse(
        f"`{ast.unparse(node)}` {used}{where}, and a step that is compiled for a mesh has none: it is many programs; "
        f"remove that use, or call `.{_ABSENT[name]}(...)` in its place once the program is rewritten",
        node if is_here else None,
    )


def _jits(site: Site, statement: ast.stmt) -> Iterator[Jit]:
    for call in site.calls(statement):
        maker, function = call.func, compiled_in(call)
        if function is None:
            continue
        if isinstance(maker, ast.Call) and len(call.args) + len(call.keywords) == 1:
            found = curried(site, maker)
            if found is not None:
                yield Jit(call, function, tuple(found[1]), found[0])
                continue
        used = compiler(site, maker)
        if used is None:
            continue
        name = site.text(maker)
        if "*" in stars_of(call):
            site.refuse(f"`*` hides what `{name}` compiles; pass it by position", call)
        named = used.positional()
        if len(call.args) > 1 + len(named):
            site.refuse(f"this `{name}` is given more than a function by position; name its other arguments", call)
        by_position = [ast.keyword(option, value) for option, value in zip(named, call.args[1:], strict=False)]
        options = (keyword for keyword in call.keywords if keyword.value is not function)
        yield Jit(call, function, (*by_position, *options), used)


def _made_where(site: Site) -> str:
    """Where a step is compiled that a statement calls."""
    flow = values_of(site.project)

    def compiled(value: Value) -> bool | None:
        return True if value.head in JIT_KINDS and [step.kind for step in value.path] == [By.CALL] else None

    for call in site.calls(site.statement):
        for place in flow.may(flow.value_in(site.facts, call.func), compiled).places.values():
            path, _, line = place.rpartition(":")
            return f": {site.place(path, int(line))}"
    return ""


def _refuse_others(site: Site, names: Iterator[ast.expr]) -> None:
    for node in names:
        reason = _OTHERS.get(site.resolve(node) or "")
        if reason is not None:
            site.refuse(reason, node)
