"""Split a proved function: what is computed once on the whole batch, and what is computed for each microbatch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mmruntime import _compat
from mmruntime._exactness.prove import Proof
from mmruntime._exactness.rules.equation import Edit, Edits, Hoisted, Scale, line_of
from mmruntime._jaxpr.rewrite import CALLS, needed


@dataclass(frozen=True)
class Split:
    """A proved function in two parts.

    Attributes:
        before: A closed jaxpr of the arguments for the whole batch: the hoisted values, then the results at `same`.
        body: A closed jaxpr of the arguments for a microbatch, then the hoisted values or their rows: the results at
            `combined`.
        hoisted: What each hoisted value is, in order.
        same: Positions of the results that `before` gives.
        combined: Positions of the results that the microbatches' results make up.

    What the results that are "after" are computed of stands behind the function's own results, as further ones.
    """

    before: Any
    body: Any
    hoisted: tuple[Hoisted, ...]
    same: tuple[int, ...]
    combined: tuple[int, ...]


def split(proof: Proof) -> Split:
    """Split a function all of whose results are proved, or are to be summed up anyway.

    Results without proof are among `combined`.
    """
    kinds = [verdict.kind for verdict in (*proof.verdicts, *proof.totals)]
    same = tuple(i for i, kind in enumerate(kinds) if kind == "same")
    combined = tuple(i for i, kind in enumerate(kinds) if kind not in ("same", "after"))
    part, whole = proof.part, proof.whole
    if proof.afterwards is not None:
        part = _with_results(part, proof.afterwards.totals)
        whole = _with_results(whole, proof.afterwards.whole_totals)
    body, hoisted = _Body(proof.num_microbatches).build(part, proof.edits, combined)
    before = _before(whole, proof.edits, hoisted, same)
    return Split(before, body, tuple(hoisted), same, combined)


def _with_results(closed: Any, further: Sequence[Any]) -> Any:
    jaxpr, consts = _compat.split(closed)
    values = dict(zip(jaxpr.constvars, consts, strict=True))
    return _closed(jaxpr, values, jaxpr.invars, [*jaxpr.outvars, *further], jaxpr.eqns)


class _Body:
    """Applies the changes of a proof to the microbatch's program."""

    def __init__(self, n: int) -> None:
        self.n = n
        # What is hoisted out of `shard_map`, as an array of what the devices have.
        self.outside: dict[Hoisted, Hoisted] = {}

    def build(self, closed: Any, edits: Edits, keep: Sequence[int] | None = None) -> tuple[Any, list[Hoisted]]:
        """A closed jaxpr with its changes, hoisted values as further arguments, and which these are.

        Args:
            closed: The jaxpr, open or closed.
            edits: What has to change.
            keep: Positions of the results that are wanted; all if left out.
        """
        jaxpr, consts = _compat.split(closed)
        extra: dict[Hoisted, Any] = {}
        eqns: list[Any] = []

        def instead(hoisted: Hoisted) -> Any:
            if isinstance(hoisted.whole, _compat.Literal):
                return hoisted.whole
            if hoisted not in extra:
                extra[hoisted] = _compat.new_var(hoisted.part.aval)
            return extra[hoisted]

        def read(atom: Any, edit: Edit | None, like: Any) -> Any:
            if isinstance(edit, Hoisted):
                return instead(edit)
            if _compat.is_var(atom) and atom in edits.hoisted:
                atom = instead(edits.hoisted[atom])
            if isinstance(edit, Scale):
                target = _compat.new_var(atom.aval)
                added = _compat.scale_eqns(atom, self.n, edit.power, target)
                if like is not None:
                    # The line, and the mesh whose devices run it.
                    added = [eqn.replace(source_info=like.source_info, ctx=like.ctx) for eqn in added]
                eqns.extend(added)
                return target
            return atom

        for index, eqn in enumerate(jaxpr.eqns):
            invars = [
                read(atom, edits.operands.get((index, position)), eqn) for position, atom in enumerate(eqn.invars)
            ]
            eqns.append(self._equation(eqn.replace(invars=invars), edits.inner.get(index, {}), instead))
        producers = {var: eqn for eqn in jaxpr.eqns for var in eqn.outvars}
        outvars = [
            read(atom, edits.outs.get(position), producers.get(atom) if _compat.is_var(atom) else None)
            for position, atom in enumerate(jaxpr.outvars)
            if keep is None or position in keep
        ]
        eqns, reads = needed(eqns, outvars, _compat.acts)
        used = {hoisted: var for hoisted, var in extra.items() if var in reads}
        invars = [*jaxpr.invars, *used.values()]
        values = dict(zip(jaxpr.constvars, consts, strict=True))
        return _closed(jaxpr, values, invars, outvars, eqns), list(used)

    def _equation(self, eqn: Any, inner: dict[Any, Edits], instead: Any) -> Any:
        if all(edits.is_empty for edits in inner.values()):
            return eqn
        params = dict(eqn.params)
        if eqn.primitive.name == "shard_map":
            return self._shard_map(eqn, inner["jaxpr"], instead)
        extra: list[Any] = []
        if eqn.primitive.name == "cond":
            params["branches"], hoisted = self._branches(params["branches"], inner)
            extra += map(instead, hoisted)
            inner = {key: edits for key, edits in inner.items() if key[0] != "branches"}
        for key, edits in inner.items():
            changed, hoisted = self.build(params[key], edits)
            params[key] = changed if hasattr(params[key], "consts") else _compat.split(changed)[0]
            extra += map(instead, hoisted)
        if eqn.primitive.name in CALLS and eqn.primitive.name.startswith("custom_"):
            # The function's derivative rules do not know of the changes.
            closed = params[CALLS[eqn.primitive.name]]
            problem = no_derivative(line_of(eqn))
            call = _compat.call_without_derivative(closed, [*eqn.invars, *extra], eqn.outvars, problem)
            return call.replace(source_info=eqn.source_info)
        return _compat.with_extra_inputs(eqn.replace(params=params), extra)

    def _branches(self, branches: Sequence[Any], inner: Mapping[Any, Edits]) -> tuple[tuple[Any, ...], list[Hoisted]]:
        """The branches, each taking all hoisted values, and these values."""
        built = [self.build(branch, inner["branches", index]) for index, branch in enumerate(branches)]
        every = [each for _, hoisted in built for each in hoisted]
        changed = []
        for closed, hoisted in built:
            jaxpr, consts = _compat.split(closed)
            count = len(jaxpr.invars) - len(hoisted)
            own = dict(zip(hoisted, jaxpr.invars[count:], strict=True))
            further = [own[each] if each in own else _compat.new_var(each.part.aval) for each in every]
            invars = [*jaxpr.invars[:count], *further]
            changed.append(_compat.with_consts(jaxpr.replace(invars=invars), consts))
        return tuple(changed), every

    def _shard_map(self, eqn: Any, edits: Edits, instead: Any) -> Any:
        changed, hoisted = self.build(eqn.params["jaxpr"], edits)
        jaxpr, consts = _compat.split(changed)
        assert not consts
        arrays = []
        for each in hoisted:
            if each not in self.outside:
                part, whole = (_compat.new_var(_compat.aval_of_devices(eqn, each.part.aval)) for _ in range(2))
                self.outside[each] = Hoisted(part, whole, each.value, each.primitive, each.line, on_device=each)
            arrays.append(instead(self.outside[each]))
        return _compat.with_device_inputs(eqn, jaxpr, arrays)


def no_derivative(rule: str) -> str:
    """What is said where a loop is differentiated, and a function in it has a derivative rule of its own."""
    return (
        f"microbatch: the loop is differentiated, and {rule or 'a function'} has a derivative rule of its own, of "
        "which nothing is proved. Put jax.grad or jax.value_and_grad inside: "
        "mm.microbatch(jax.value_and_grad(loss), ...)."
    )


def _closed(
    like: Any, consts: Mapping[Any, Any], invars: Sequence[Any], outvars: Sequence[Any], eqns: Sequence[Any]
) -> Any:
    effects = frozenset[Any]().union(*[eqn.effects for eqn in eqns]) if eqns else frozenset[Any]()
    jaxpr = like.replace(
        constvars=list(consts), invars=list(invars), outvars=list(outvars), eqns=list(eqns), effects=effects
    )
    return _compat.with_consts(jaxpr, list(consts.values()))


def reads_edits(proof: Proof, position: int) -> bool:
    """Whether a result comes of anything that the proof changes in the microbatch's program."""
    jaxpr, _ = _compat.split(proof.part)
    edits = proof.edits
    eqns, reads = needed(jaxpr.eqns, [jaxpr.outvars[position]])
    kept = {id(eqn) for eqn in eqns}
    changed = {index for index, _ in edits.operands}
    changed |= {index for index, inner in edits.inner.items() if not all(each.is_empty for each in inner.values())}
    in_place = any(id(jaxpr.eqns[index]) in kept for index in changed)
    return in_place or position in edits.outs or any(var in reads for var in edits.hoisted)


def _before(closed: Any, edits: Edits, hoisted: Sequence[Hoisted], same: Sequence[int]) -> Any:
    """The part of the whole batch's program that hoisted values, and the results at `same`, come from."""
    jaxpr, consts = _compat.split(closed)
    outside = {each.on_device: each for each in hoisted if each.on_device is not None}
    opened = _Opened([], {}, {}, {*hoisted, *outside}, outside)
    env: dict[Any, Any] = {var: var for var in jaxpr.invars}
    opened.constants(jaxpr, consts, env)
    outs = opened.equations(jaxpr, edits, env, None)
    outvars = [*(opened.found[each] for each in hoisted), *(outs[position] for position in same)]
    eqns, reads = [], {atom for atom in outvars if _compat.is_var(atom)}
    for eqn in reversed(opened.eqns):
        used = [_compat.is_var(var) and var in reads for var in eqn.outvars]
        if not any(used):
            continue
        part = _compat.needed_part(eqn, used) or eqn
        eqns.append(part)
        reads.update(atom for atom in part.invars if _compat.is_var(atom))
    used_consts = {var: value for var, value in opened.consts.items() if var in reads}
    return _closed(jaxpr, used_consts, jaxpr.invars, outvars, eqns[::-1])


@dataclass
class _Opened:
    """The whole batch's program, with the calls opened that hoisted values are in."""

    eqns: list[Any]
    consts: dict[Any, Any]
    found: dict[Hoisted, Any]
    wanted: set[Hoisted]
    outside: dict[Hoisted, Hoisted] = field(default_factory=dict)

    def constants(self, jaxpr: Any, consts: Sequence[Any], env: dict[Any, Any]) -> None:
        for var, value in zip(jaxpr.constvars, consts, strict=True):
            env[var] = fresh = _compat.new_var(var.aval)
            self.consts[fresh] = value

    def equations(self, jaxpr: Any, edits: Edits, env: dict[Any, Any], stack: Any) -> list[Any]:
        def read(atom: Any) -> Any:
            return env[atom] if _compat.is_var(atom) else atom

        for index, eqn in enumerate(jaxpr.eqns):
            names = eqn.source_info.name_stack if stack is None else stack + eqn.source_info.name_stack
            inner = edits.inner.get(index, {})
            invars = [read(atom) for atom in eqn.invars]
            wanted = {key: each for key, each in inner.items() if self._has_wanted(each)}
            if wanted and eqn.primitive.name == "shard_map":
                eqn, further = self._shard_map(eqn, wanted["jaxpr"])
                invars += further
            elif wanted and eqn.primitive.name == "cond":
                # Computed whichever branch is taken; the branches stay for their results.
                for (_, position), inner_edits in wanted.items():
                    self._opened(eqn.params["branches"][position], inner_edits, invars[1:], names)
            elif wanted:
                ((key, inner_edits),) = wanted.items()
                outs = self._opened(eqn.params[key], inner_edits, invars, names)
                env.update(zip(eqn.outvars, outs, strict=True))
                continue
            outvars = []
            for var in eqn.outvars:
                fresh = _compat.new_var(var.aval) if _compat.is_var(var) else var
                env[var] = fresh
                outvars.append(fresh)
            source_info = eqn.source_info.replace(name_stack=names)
            self.eqns.append(eqn.replace(invars=invars, outvars=outvars, source_info=source_info))
            if wanted and eqn.primitive.name == "shard_map":
                made = {each.whole: each for each in self.outside.values()}
                self.found.update({made[var]: env[var] for var in eqn.outvars if var in made})
        for hoisted in _own(edits):
            if hoisted in self.wanted:
                self.found[hoisted] = read(hoisted.whole)
        return [read(atom) for atom in jaxpr.outvars]

    def _opened(self, closed: Any, edits: Edits, invars: Sequence[Any], names: Any) -> list[Any]:
        body, consts = _compat.split(closed)
        env = dict(zip(body.invars, invars, strict=True))
        self.constants(body, consts, env)
        return self.equations(body, edits, env, names)

    def _shard_map(self, eqn: Any, edits: Edits) -> tuple[Any, list[Any]]:
        """A `shard_map` that gives what is hoisted out of it as well, and what it takes besides."""
        body, _ = _compat.split(eqn.params["jaxpr"])
        inside = _Opened([], {}, {}, self.wanted)
        outs = inside.equations(body, edits, {var: var for var in body.invars}, None)
        taken = [_compat.new_var(var.aval) for var in inside.consts]
        self.consts.update(zip(taken, inside.consts.values(), strict=True))
        jaxpr = body.replace(invars=[*body.invars, *inside.consts], outvars=outs, eqns=inside.eqns)
        made = {outside.whole: inside.found[each] for each, outside in self.outside.items() if each in inside.found}
        return _compat.with_device_results(eqn, jaxpr, taken, made), taken

    def _has_wanted(self, edits: Edits) -> bool:
        if any(hoisted in self.wanted for hoisted in _own(edits)):
            return True
        return any(self._has_wanted(inner) for each in edits.inner.values() for inner in each.values())


def _own(edits: Edits) -> list[Hoisted]:
    found = [*edits.hoisted.values(), *edits.operands.values(), *edits.outs.values()]
    return [hoisted for hoisted in found if isinstance(hoisted, Hoisted)]
