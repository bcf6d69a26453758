"""Inline: equations of a call's body in the place of the call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmruntime import _compat
from mmruntime._compat import Atom, Var, is_var
from mmruntime._core.marks import is_marked
from mmruntime._jaxpr.ir import Op

# Where a call has its jaxpr.
CALLS = {
    **dict.fromkeys(("jit", "pjit", "checkpoint", "remat2", "remat"), "jaxpr"),
    # Of these, JAX 0.10 puts the equations of an `eval_jaxpr` in its place, so that no program has one.
    **dict.fromkeys(("closed_call", "core_call", "eval_jaxpr", "custom_jvp_call", "custom_vjp_call"), "call_jaxpr"),
    "custom_vjp_call_jaxpr": "fun_jaxpr",
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


def open_calls(op: Op) -> list[Op]:
    """The equations of a call, and of calls inside it; the equation itself if it is no call."""
    body = _body(op.eqn)
    if body is None:
        return [op]
    inner, consts = body
    if consts:
        return [op]
    return [op.with_eqn(eqn) for eqn in _open(op.eqn, inner)]


def _body(eqn: Any) -> tuple[Any, list[Any]] | None:
    """The body of a call: a jit or a rematerialised function, which computes its one inner jaxpr and no more."""
    if eqn.primitive is not _compat.jit_p and eqn.primitive is not _compat.remat_p:
        return None
    return _compat.split(eqn.params["jaxpr"])


def _open(call: Any, inner: Any) -> list[Any]:
    result: list[Any] = []
    for eqn in inlined(inner, call.invars, call.outvars, call):
        body = _body(eqn)
        result.extend([eqn] if body is None or body[1] else _open(eqn, body[0]))
    return result


def opened_program(closed: Any) -> Any:
    """A closed jaxpr with the equations of its calls of compiled functions, but for tasks and microbatch loops."""
    jaxpr, consts = _compat.split(closed)
    return _compat.with_consts(jaxpr.replace(eqns=[each for eqn in jaxpr.eqns for each in _open_unmarked(eqn)]), consts)


def _open_unmarked(eqn: Any) -> list[Any]:
    if eqn.primitive is not _compat.jit_p or _holds_mark(eqn):
        return [eqn]
    inner, consts = _compat.split(eqn.params["jaxpr"])
    if consts:
        return [eqn]
    return [each for one in inlined(inner, eqn.invars, eqn.outvars, eqn) for each in _open_unmarked(one)]


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
