"""The forms in which a program compiles a function, and the arguments of `jax.jit` that a pipeline accepts."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mmrewrite.codemod.site import Site
from mmrewrite.source.functions import JIT, is_jit_decorator

CARRIED = ("donate_argnums", "donate_argnames", "static_argnums", "static_argnames")
# These change how XLA is called, but no value.
_WITHOUT_EFFECT = ("inline", "keep_unused")
_LAYOUTS = ("in_shardings", "out_shardings")
_PARTIAL = "functools.partial"

_COPIES = (
    "`{}` runs copies of the step that know of each other; write it for one device with `jax.jit`, and let an axis of "
    "the mesh spread the batch"
)

# Other functions that compile: why `mjit` cannot replace them, and what to write.
_OTHERS = {
    "flax.nnx.jit": "`nnx.jit` writes changed state back into the modules among its arguments; make the step a "
    "function of state, `nnx.split` before it and `nnx.merge` in it, compile that with `jax.jit`, and hint it",
    "flax.linen.jit": "`nn.jit` compiles a module within a step; compile the whole step with `jax.jit`, and hint that",
    "equinox.filter_jit": "`eqx.filter_jit` looks at each call for what is an array; split the model with "
    "`eqx.partition(model, eqx.is_array)`, compile a function of the arrays with `jax.jit`, and hint that",
    "haiku.jit": "`hk.jit` carries Haiku's state along; apply `hk.transform` to the whole step, compile what it gives "
    "with `jax.jit`, and hint that",
    "jax.pmap": _COPIES.format("jax.pmap"),
    "mmruntime.compat.pmap": _COPIES.format("compat.pmap"),
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


@dataclass(frozen=True)
class Jit:
    """A call that compiles: `jax.jit(f, ...)`, `jax.jit(...)(f)` or `functools.partial(jax.jit, ...)(f)`."""

    call: ast.Call
    function: ast.expr
    keywords: tuple[ast.keyword, ...]


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
        )
    (jit,) = found
    for node in ast.walk(statement):
        if isinstance(node, ast.Call) and jit.call in node.args and site.resolve(node.func) in _TRANSFORMATIONS:
            name = site.text(node.func)
            site.refuse(f"`{name}` of a compiled step is not cut into tasks; put `jax.jit` around `{name}(...)`", node)
        if isinstance(node, ast.Attribute) and node.value is jit.call:
            _refuse_absent(site, node, site.text(jit.call))
        if isinstance(node, ast.Call) and node.func is jit.call and _is_repeated(site):
            site.refuse(
                "a step that is compiled where it is called is planned anew in each iteration; write "
                f"`step = {site.text(jit.call)}` above the loop, and hint that",
                jit.call,
            )
    for target in _targets(statement):
        refuse_uses(site, ast.unparse(target))
    return jit


def jit_decorator(site: Site, function: ast.FunctionDef | ast.AsyncFunctionDef) -> int | None:
    """Position of the decorator that compiles the function, None where there is none."""
    for index, decorator in enumerate(function.decorator_list):
        if is_jit_decorator(site.facts.names, decorator, site.scope):
            if site.scope.kind != "class":
                refuse_uses(site, function.name)
            return index
    names = [part for decorator in function.decorator_list for part in _parts(decorator)]
    _refuse_others(site, iter(names))
    return None


def carried(site: Site, keywords: Sequence[ast.keyword], place: ast.expr) -> dict[str, str]:
    """The arguments of `jax.jit` that a pipeline accepts, as source text; refuses others that have an effect."""
    found = {}
    for keyword in keywords:
        name = keyword.arg
        if name is None:
            site.refuse("`**` hides the arguments of `jax.jit`; write them out", place)
        if name in CARRIED:
            found[name] = site.text(keyword.value)
        elif name in _LAYOUTS and not _says_nothing(keyword.value):
            site.refuse(
                f"`{name}=` lays arrays out over one mesh, and here the mesh and the tasks decide that; remove it, and "
                "write `shard(...)` hints where a layout matters",
                place,
            )
        elif name not in (*_WITHOUT_EFFECT, *_LAYOUTS):
            site.refuse(
                f"`mjit` has no `{name}=`: the mesh says which devices, and each task is compiled alone; remove it",
                place,
            )
    return found


def refuse_uses(site: Site, name: str) -> None:
    """Refuses a step of which the module uses methods that only the result of `jax.jit` has, such as `lower`."""
    for node in ast.walk(site.facts.tree):
        if isinstance(node, ast.Attribute) and node.attr in _ABSENT and ast.unparse(node.value) == name:
            _refuse_absent(site, node, name)


def _refuse_absent(site: Site, node: ast.Attribute, name: str) -> None:
    if node.attr in _ABSENT:
        site.refuse(
            f"`{name}.{node.attr}` is used, and a step that is compiled for a mesh has none: it is many programs; "
            f"remove that use, or call `.{_ABSENT[node.attr]}(...)` in its place once the program is rewritten",
            node,
        )


def _jits(site: Site, statement: ast.stmt) -> Iterator[Jit]:
    for call in site.calls(statement):
        if any(isinstance(argument, ast.Starred) for argument in call.args):
            if site.resolve(call.func) == JIT:
                site.refuse("`*` hides what `jax.jit` compiles; pass it by position", call)
            continue
        if site.resolve(call.func) == JIT and len(call.args) == 1:
            yield Jit(call, call.args[0], tuple(call.keywords))
        elif isinstance(call.func, ast.Call) and len(call.args) == 1 and not call.keywords:
            maker = call.func
            name = site.resolve(maker.func)
            is_partial = name == _PARTIAL and len(maker.args) == 1 and site.resolve(maker.args[0]) == JIT
            if is_partial or (name == JIT and not maker.args):
                yield Jit(call, call.args[0], tuple(maker.keywords))
        elif site.resolve(call.func) == JIT and call.args:
            site.refuse("this `jax.jit` is given more than a function by position; name its other arguments", call)


def _refuse_others(site: Site, names: Iterator[ast.expr]) -> None:
    for node in names:
        reason = _OTHERS.get(site.resolve(node) or "")
        if reason is not None:
            site.refuse(reason, node)


def _parts(decorator: ast.expr) -> Iterator[ast.expr]:
    yield decorator
    if isinstance(decorator, ast.Call):
        yield decorator.func
        yield from decorator.args


def _targets(statement: ast.stmt) -> list[ast.expr]:
    match statement:
        case ast.Assign(targets=targets):
            return targets
        case ast.AnnAssign(target=target):
            return [target]
    return []


def _is_repeated(site: Site) -> bool:
    for holder in site.facts.names.around(site.statement):
        if isinstance(holder, ast.For | ast.AsyncFor | ast.While):
            return True
        if isinstance(holder, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return False
    return False


def _says_nothing(value: ast.expr) -> bool:
    """Whether a layout is `None` throughout."""
    if isinstance(value, ast.Tuple | ast.List):
        return all(_says_nothing(item) for item in value.elts)
    return isinstance(value, ast.Constant) and value.value is None
