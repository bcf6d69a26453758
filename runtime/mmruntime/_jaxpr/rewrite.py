"""Rewriting: which equations are needed, equations on other variables, and those of a call in its place.

Equations of JAX and those of a step (`Op`) go through the same functions. `trace_equations` makes new
equations of a function, and `part_of_scan` a scan of some equations of another.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import jax

from mmruntime import _compat
from mmruntime._compat import Atom, Var, is_var
from mmruntime._core.marks import is_marked
from mmruntime._jaxpr.ir import Op, abstract

_Item = TypeVar("_Item")


def needed(
    items: Sequence[_Item], wanted: Iterable[Any], keep: Callable[[_Item], Any] | None = None
) -> tuple[list[_Item], set[Var]]:
    """The equations that some atoms come from, in order, and all variables that they or the atoms read.

    Args:
        items: Equations, or those of a step.
        wanted: The atoms.
        keep: Whether to keep an equation whatever reads it, as for its effects.
    """
    reads: set[Var] = {atom for atom in wanted if is_var(atom)}
    kept: list[_Item] = []
    for item in reversed(items):
        eqn: Any = item.eqn if isinstance(item, Op) else item
        if (keep is not None and keep(item)) or any(is_var(var) and var in reads for var in eqn.outvars):
            kept.append(item)
            reads.update(atom for atom in eqn.invars if is_var(atom))
    return kept[::-1], reads


def has_effects(item: Any) -> bool:
    """Whether an equation does more than compute its results."""
    return bool((item.eqn if isinstance(item, Op) else item).effects)


def renamed(eqn: Any, reads: Mapping[Any, Any], writes: Mapping[Any, Any]) -> Any:
    """An equation with the variables that it reads and writes replaced; the same object if none is."""
    ins = [reads.get(atom, atom) if is_var(atom) else atom for atom in eqn.invars]
    outs = [writes.get(var, var) if is_var(var) else var for var in eqn.outvars]
    is_same = all(a is b for a, b in zip((*ins, *outs), (*eqn.invars, *eqn.outvars), strict=True))
    return eqn if is_same else eqn.replace(invars=ins, outvars=outs)


# Where a call has its jaxpr.
CALLS = {
    **dict.fromkeys(("jit", "remat2"), "jaxpr"),
    # Of these, JAX 0.10 puts the equations of an `eval_jaxpr` in its place, so that no program has one.
    **dict.fromkeys(("closed_call", "eval_jaxpr", "custom_jvp_call", "custom_vjp_call"), "call_jaxpr"),
}


def body_of_call(eqn: Any) -> tuple[Any, list[Any]] | None:
    """The body of an equation that computes its one inner jaxpr and no more; derivatives were taken before."""
    name = eqn.primitive.name
    return _compat.split(eqn.params[CALLS[name]]) if name in CALLS else None


def fresh(jaxpr: Any) -> tuple[list[Var], list[Any], list[Any]]:
    """The arguments, equations and results of an open jaxpr, in variables of their own.

    JAX keeps traces, so that one jaxpr object may be the body of several equations.
    """
    env: dict[Any, Any] = {var: _compat.new_var(var.aval) for var in (*jaxpr.invars, *jaxpr.constvars)}
    env |= {var: _compat.new_var(var.aval) for eqn in jaxpr.eqns for var in eqn.outvars if is_var(var)}
    eqns = [
        eqn.replace(
            invars=[env[atom] if is_var(atom) else atom for atom in eqn.invars],
            outvars=[env[var] if is_var(var) else var for var in eqn.outvars],
        )
        for eqn in jaxpr.eqns
    ]
    outs = [env[atom] if is_var(atom) else atom for atom in jaxpr.outvars]
    return [env[var] for var in jaxpr.invars], eqns, outs


def opened(eqn: Any, opens: Callable[[Any], bool]) -> list[Any]:
    """The equations of a call, and of calls inside it, as far as they are to be opened; else the equation itself.

    Calls whose bodies have constants stay.
    """
    call = body_of_call(eqn) if opens(eqn) else None
    if call is None or call[1]:
        return [eqn]
    return [each for inner in inlined(call[0], eqn.invars, eqn.outvars, eqn) for each in opened(inner, opens)]


def open_calls(op: Op) -> list[Op]:
    """The equations of calls of compiled and rematerialised functions; the equation itself if it is none."""
    eqns = opened(op.eqn, lambda eqn: eqn.primitive in (_compat.jit_p, _compat.remat_p))
    return [op if eqn is op.eqn else op.with_eqn(eqn) for eqn in eqns]


def opened_program(closed: Any) -> Any:
    """A closed jaxpr with the equations of its calls of compiled functions, but for tasks and microbatch loops."""
    jaxpr, consts = _compat.split(closed)

    def opens(eqn: Any) -> bool:
        return eqn.primitive is _compat.jit_p and not _holds_mark(eqn)

    eqns = [each for eqn in jaxpr.eqns for each in opened(eqn, opens)]
    return _compat.with_consts(jaxpr.replace(eqns=eqns), consts)


def _holds_mark(eqn: Any) -> bool:
    """Whether an equation is a task or a microbatch loop, or has one inside."""
    calls = (each for each in _compat.every_equation([eqn]) if each.primitive is _compat.jit_p)
    return any(is_marked(each.params["name"]) for each in calls)


def inlined(inner: Any, invars: Sequence[Atom], outvars: Sequence[Any], like: Any) -> list[Any]:
    """The equations of an open jaxpr without constants, on other variables.

    Args:
        inner: The jaxpr.
        invars: Values for its arguments.
        outvars: Variables for its results.
        like: An equation whose name stack goes in front of those of the jaxpr's equations; None if it has none.
    """
    env: dict[Var, Any] = dict(zip(inner.invars, invars, strict=True))
    # A result of the call takes the place of the inner variable, if one inner equation writes it.
    written = {var for eqn in inner.eqns for var in eqn.outvars if is_var(var)}
    aliases: list[tuple[Var, Any]] = []
    for outer, atom in zip(outvars, inner.outvars, strict=True):
        if not is_var(outer):
            continue
        if is_var(atom) and atom in written and atom not in env:
            env[atom] = outer
        else:
            aliases.append((outer, atom))

    def read(atom: Any) -> Any:
        return env.get(atom, atom) if is_var(atom) else atom

    result: list[Any] = []
    for eqn in inner.eqns:
        for var in eqn.outvars:
            if is_var(var) and var not in env:
                env[var] = _compat.new_var(var.aval)
        source_info = eqn.source_info
        if like is not None:
            source_info = source_info.replace(name_stack=like.source_info.name_stack + source_info.name_stack)
        invars = [read(atom) for atom in eqn.invars]
        outvars = [env[var] if is_var(var) else var for var in eqn.outvars]
        result.append(eqn.replace(invars=invars, outvars=outvars, source_info=source_info))
    result.extend(_compat.copy_eqn(read(atom), outer) for outer, atom in aliases)
    return result


def trace_equations(
    function: Callable[..., Any], operands: Sequence[Atom], out: Var | None = None
) -> tuple[Var, list[Any]]:
    """The variable of a function's one result, and its equations.

    Args:
        function: What to trace; it captures no arrays.
        operands: Its arguments.
        out: The variable; a new one if left out.
    """
    traced, captured = _compat.split(jax.make_jaxpr(function)(*map(abstract, operands)))
    assert not captured, "what is traced reads its operands only"
    out = _compat.new_var(traced.outvars[0].aval) if out is None else out
    return out, inlined(traced, operands, [out], None)


def part_of_scan(
    eqn: Any,
    eqns: Sequence[Any],
    carries: Collection[Var],
    results: Sequence[tuple[Atom, Any]],
    kept: Sequence[Var],
    outer: Mapping[Var, Any],
    sliced: Container[Var],
) -> tuple[list[Any], list[Var]]:
    """A scan of some equations of another's body. It runs as that does: as often, in the same order, as far unrolled.

    Args:
        eqn: The other scan.
        eqns: The equations, in order.
        carries: Variables of the body, for the values that are carried.
        results: The body's results, carried values first, each with the variable that the scan gives for it.
        kept: Further values of the body, of which the scan is to give stacks.
        outer: What a variable that the body reads is outside of it: an operand, or the stack of another scan. One that
            is not here is the same outside.
        sliced: Those of them that the scan goes along; others are the same in each turn.

    Returns:
        The equations of the scan, with others from tracing it, and the variables of the stacks of `kept`.
    """
    outs = [*(atom for atom, _ in results), *kept]
    made = {*carries, *(var for each in eqns for var in each.outvars)}
    read = dict.fromkeys(atom for atom in (*(atom for each in eqns for atom in each.invars), *outs) if is_var(atom))
    slices = [var for var in read if var not in made and var in sliced]
    consts = [var for var in read if var not in made and var not in sliced]
    invars = [*consts, *carries, *slices]
    compute = _compat.as_fun(_compat.close(_compat.split(eqn.params["jaxpr"])[0], invars, outs, eqns))
    first, options = len(consts) + len(carries), {name: eqn.params[name] for name in ("length", "reverse", "unroll")}

    def scan(*args: Any) -> list[Any]:
        carry, stacks = run_scan(compute, args[: len(consts)], args[len(consts) : first], args[first:], **options)
        return [*carry, *stacks]

    operands = [outer.get(var, var) for var in invars]
    traced, captured = _compat.split(jax.make_jaxpr(scan)(*map(abstract, operands)))
    assert not captured, "all that the body reads is an argument"
    stacks = [_compat.new_var(atom.aval) for atom in traced.outvars[len(results) :]]
    return inlined(traced, operands, [*(var for _, var in results), *stacks], eqn), stacks


def run_scan(
    compute: Callable[..., list[Any]],
    consts: Sequence[Any],
    carry: Sequence[Any],
    slices: Sequence[Any],
    **options: Any,
) -> tuple[list[Any], list[Any]]:
    """The last carry of a scan, and its stacked results.

    Args:
        compute: The body: a function of constants, carried values and slices, which returns carried values, then what
            is stacked.
        consts: What it is given in each turn.
        carry: The first carry.
        slices: The arrays that it goes along.
        **options: Those of `jax.lax.scan`.
    """

    def once(carry: Any, piece: Any) -> tuple[Any, Any]:
        out = compute(*consts, *carry, *piece)
        return out[: len(carry)], out[len(carry) :]

    last, stacks = jax.lax.scan(once, list(carry), list(slices), **options)
    return list(last), list(stacks)
