"""Calls, loops and branches: equations with jaxprs inside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmruntime import _compat
from mmruntime._exactness.lattice import ANY, FREE, ZERO, AbstractValue, Kind, Reason, Shards, join_outer
from mmruntime._exactness.rules.equation import Equation, NoRule, NotProved, Place, Scale, is_inexact, rule
from mmruntime._exactness.rules.shards import check_devices, decided_on_devices, joined_on_devices
from mmruntime._jaxpr.carry import changes, computed_from
from mmruntime._jaxpr.rewrite import CALLS, has_effects, needed

# Rules of derivatives have been used, or are not needed, where calls are met. A name says nothing about values: that of
# a task may depend on the microbatch.
_DERIVATIVES = (
    "jvp_jaxpr_fun", "jvp_jaxpr_thunk", "fwd", "fwd_jaxpr_thunk", "bwd", "out_trees", "symbolic_zeros", "num_consts",
    "policy", "prevent_cse", "differentiated", "name",
)  # fmt: skip


@rule(*CALLS, loose=(*CALLS.values(), *_DERIVATIVES))
def call(eqn: Equation) -> list[AbstractValue]:
    """What the inner jaxpr gives; values inside of it can be hoisted as well."""
    key = CALLS[eqn.name]
    return eqn.run(key, eqn.params[key], eqn.whole_params[key], eqn.ins, hoists=eqn.may_hoist)


@rule("composite", "xla_metadata_call", loose=("jaxpr", "call_jaxpr"))
def closed(eqn: Equation) -> list[AbstractValue]:
    """What the inner jaxpr gives."""
    key = "jaxpr" if "jaxpr" in eqn.params else "call_jaxpr"
    return eqn.run(key, eqn.params[key], eqn.whole_params[key], eqn.ins)


@rule("custom_vmap_call", loose=("call", "rule", "in_tree", "out_tree"))
def custom_vmap_call(eqn: Equation) -> list[AbstractValue]:
    """What the function gives; the rule for mapping it has been used, or is not needed."""
    return eqn.run("call", eqn.params["call"], eqn.whole_params["call"], eqn.ins)


@rule("custom_linear_solve", loose=("jaxprs",))
def custom_linear_solve(eqn: Equation) -> list[AbstractValue]:
    """What the solver gives for its constants and the right-hand sides."""
    lengths = eqn.params["const_lengths"]
    first = lengths.matvec + lengths.vecmat
    sides = first + lengths.solve + lengths.transpose_solve
    ins = [*eqn.ins[first : first + lengths.solve], *eqn.ins[sides:]]
    part, whole = eqn.params["jaxprs"].solve, eqn.whole_params["jaxprs"].solve
    outs, edits = eqn.interpreter.run(part, whole, ins, hoists=False)
    if not edits.is_empty:
        raise NoRule
    return outs


def _inward(value: AbstractValue) -> AbstractValue:
    """A scanned operand as the body reads it: without the leading dimension."""
    if value.shape_grows and value.dim == 0:
        raise NotProved("loops over the examples of an array that other arrays in the loop have in another dimension")
    return _moved(value, -1)


def _moved(value: AbstractValue, by: int) -> AbstractValue:
    """A value with one leading dimension more, or one less, which counts no examples."""
    found = value.at(value.dim + by) if value.shape_grows else value
    if value.shards is None:
        return found
    layout = value.shards.layout
    if not layout or (by < 0 and layout[0]):
        return found.but(shards=None)
    layout = layout[1:] if by < 0 else ((), *layout)
    return found.but(shards=Shards(_moved(value.shards.value, by), layout))


@rule("scan", loose=("jaxpr", "length", "ft_in", "ft_out"))
def scan(eqn: Equation) -> list[AbstractValue]:
    """A loop over the leading dimension of arrays: layers, time steps, or the examples themselves."""
    num_consts, num_carry = _compat.scan_counts(eqn.part)
    part, whole = eqn.params["jaxpr"], eqn.whole_params["jaxpr"]
    if eqn.params["length"] != eqn.whole_params["length"]:
        return _over_examples(eqn, num_consts, num_carry)
    first_slice = num_consts + num_carry
    eqn.replace_positions()
    consts, carry = eqn.ins[:num_consts], eqn.ins[num_consts:first_slice]
    slices = [_inward(value) for value in eqn.ins[first_slice:]]
    carry, outs = _fixed_point(eqn, "jaxpr", part, whole, consts, carry, slices, eqn.part.outvars, num_consts)
    return [*carry, *(_moved(value, 1) for value in outs)]


def _fixed_point(
    eqn: Equation,
    key: Any,
    part: Any,
    whole: Any,
    consts: Sequence[AbstractValue],
    carry: Sequence[AbstractValue],
    slices: Sequence[AbstractValue],
    atoms: Sequence[Any],
    first_carry: int,
) -> tuple[list[AbstractValue], list[AbstractValue]]:
    """The values that a loop carries, true before and after every iteration, and what the body gives besides."""
    carry = list(carry)
    count = len(carry)
    # Each carried value rises in the lattice a few times at most.
    for _ in range(8 * count + 2):
        outs = eqn.run(key, part, whole, [*consts, *carry, *slices])
        edits = eqn.inner[key]
        joined = []
        for index, (before, after) in enumerate(zip(carry, outs[:count], strict=True)):
            value = _join(before, after, atoms[index])
            joined.append(value)
        if joined == carry:
            break
        carry = joined
    else:
        raise NoRule
    # What is carried must be of that kind from the start, and again after each iteration.
    for index, value in enumerate(carry):
        if value.is_proved:
            eqn.ins[first_carry + index] = _raise_start(eqn, first_carry + index, value)
            scale = _scale_between(outs[index], value, atoms[index])
            if scale:
                if not eqn.interpreter.can_edit:
                    raise NotProved("carries a number that depends on the size of the batch")
                edits.outs[index] = Scale(scale)
    return carry, outs[count:]


def _raise_start(eqn: Equation, position: int, value: AbstractValue) -> AbstractValue:
    start = eqn.ins[position]
    scale = _scale_between(start, value, eqn.part.invars[position])
    if scale:
        eqn._scale(position, scale)
    return value


def _scale_between(found: AbstractValue, wanted: AbstractValue, atom: Any) -> int:
    """The power of `n` by which a value is multiplied so that it is of another kind."""
    if found.kind is Kind.ZERO:
        return 0
    power = found.power - wanted.power
    if found.kind is Kind.FREE and wanted.kind is Kind.SUM:
        power -= 1
    if power and not is_inexact(atom):
        raise NotProved("adds an integer that does not depend on the batch to a sum over examples")
    return power


def _join(one: AbstractValue, other: AbstractValue, atom: Any) -> AbstractValue:
    """What holds of a variable that may have either of two values."""
    found = _join_kinds(one, other, atom)
    if one.is_on_devices or other.is_on_devices:
        return joined_on_devices(one, other, found) or _not_joined(found.hoistable)
    return found


def _join_kinds(one: AbstractValue, other: AbstractValue, atom: Any) -> AbstractValue:
    hoistable = one.hoistable and other.hoistable
    own = one.own or other.own
    for value in (one, other):
        if not value.is_proved:
            return value.but(hoistable=hoistable)
    if one.kind is Kind.ZERO or other.kind is Kind.ZERO:
        found = other if one.kind is Kind.ZERO else one
        if found.kind in (Kind.MAX, Kind.MIN, Kind.INDEX, Kind.COLUMNS):
            return _not_joined(hoistable)
        return found.but(hoistable=hoistable)
    kinds = {one.kind, other.kind}
    if kinds == {Kind.FREE} or kinds == {Kind.SUM}:
        return one.but(hoistable=hoistable, own=own)
    if kinds == {Kind.ROWS} and one.dim == other.dim:
        outer = join_outer(one.outer, other.outer)
        if outer is not None:
            return one.but(outer=outer, hoistable=hoistable)
    if kinds == {Kind.FREE, Kind.SUM} and is_inexact(atom):
        found = one if one.kind is Kind.SUM else other
        return found.but(hoistable=hoistable)
    alike = {value.but(hoistable=hoistable, axes=(), varies=frozenset(), shards=None) for value in (one, other)}
    if len(alike) == 1:
        return one.but(hoistable=hoistable)
    return _not_joined(hoistable)


def _not_joined(hoistable: bool) -> AbstractValue:
    reason = Reason(
        "", "", "has a value that is a sum over examples in one iteration or branch, and is none in another"
    )
    return AbstractValue(Kind.MIXED, hoistable=hoistable, reason=reason)


def _over_examples(eqn: Equation, num_consts: int, num_carry: int) -> list[AbstractValue]:
    """A loop with an iteration for each example, or each group of them.

    The iterations are the same computation in both programs, and what differs between examples is free inside of it:
    both programs have the same value at the same example. What is carried may only be added to.
    """
    if eqn.whole_params["length"] != eqn.n * eqn.params["length"]:
        raise NotProved("loops another number of times for another batch size")
    first_slice = num_consts + num_carry
    part, _ = _compat.split(eqn.params["jaxpr"])
    for index in range(len(eqn.ins)):
        if num_consts <= index < first_slice:
            continue
        value, slices = eqn.plain(index), index >= first_slice
        eqn.ins[index] = value
        if slices and not (value.kind is Kind.ROWS and value.dim == 0 and value.outer in (1, ANY)):
            raise NotProved("loops over examples and over something else at once")
        if not slices and value.kind is not Kind.FREE:
            raise NotProved("reads all examples in a loop over them")
    carry = eqn.ins[num_consts:first_slice]
    grows, sums = _accumulators(part, num_consts, num_carry)
    check_devices(eqn)
    inside = [
        FREE.but(hoistable=value.hoistable, power=value.power, axes=value.axes, varies=value.varies)
        for value in eqn.ins
    ]
    for index, start in enumerate(carry):
        if not grows[index]:
            raise NotProved(
                "carries a value from one example to the next",
                "Microbatches do not see each other's examples: compute such values outside of the function.",
            )
        if grows[index] == "same" and start.kind not in (Kind.FREE, Kind.ZERO):
            raise NotProved("reads all examples in a loop over them")
        # Nothing reads a sum but the additions to it, so that inside it is as good as zero.
        inside[num_consts + index] = start if grows[index] == "same" else ZERO.but(hoistable=start.hoistable)
    outs = eqn.run("jaxpr", eqn.params["jaxpr"], eqn.whole_params["jaxpr"], inside)
    edits = eqn.inner["jaxpr"]
    if any(value.kind not in (Kind.FREE, Kind.ZERO) for value in outs):
        raise NotProved("computes something from each example that cannot be proved")
    changed = [part.eqns[index].invars[position] for index, position in edits.operands]
    if any(_compat.is_var(atom) and atom in sums for atom in changed):
        raise NotProved("loops over the examples with numbers that depend on the size of the batch")
    results = []
    for index, start in enumerate(carry):
        if grows[index] == "same":
            results.append(start)
            continue
        position, found = num_consts + index, outs[index]
        if start.kind is Kind.FREE and start.power != found.power + 1:
            if not eqn.is_inexact(position):
                raise NotProved("adds up examples to an integer that does not depend on the batch")
            eqn._scale(position, start.power - found.power - 1)
        elif start.kind not in (Kind.ZERO, Kind.FREE):
            raise NotProved("adds up examples to something that depends on the batch")
        results.append(found.but(kind=Kind.SUM, hoistable=found.hoistable and start.hoistable))
    is_split = any(value.axes for value in eqn.ins)
    for value in outs[num_carry:]:
        # What no device's example decides is alike in all iterations.
        outer = ANY if is_split and not value.axes else 1
        results.append(value.but(kind=Kind.ROWS, dim=0, outer=outer))
    return results


def _accumulators(jaxpr: Any, num_consts: int, num_carry: int) -> tuple[list[str], set[Any]]:
    """How each carried value of a loop's body changes ("sum", "same", or "" for anything else); the sums' variables."""
    carried, outs = jaxpr.invars[num_consts : num_consts + num_carry], jaxpr.outvars
    found = changes(jaxpr, carried, outs[:num_carry])
    wanted = [addend.atom for change in found for addend in change.addends]
    # Nothing may see a sum but the additions to it.
    _, seen = needed(jaxpr.eqns, [*wanted, *outs[num_carry:]], has_effects)
    kinds = []
    for before, after, change in zip(carried, outs, found, strict=False):
        is_sum = change.kind in ("same", "sum") and before not in seen
        kinds.append("same" if after is before else "sum" if is_sum else "")
    return kinds, computed_from(jaxpr, {var for var, kind in zip(carried, kinds, strict=True) if kind == "sum"})


@rule("while", loose=("cond_jaxpr", "body_jaxpr"))
def while_loop(eqn: Equation) -> list[AbstractValue]:
    """A loop whose number of iterations does not depend on the examples, or one for each example by itself.

    Of `jax.vmap` of a loop, the condition has the shape of the mapped dimensions, with which the shape of all that is
    carried begins. JAX goes on while any entry does, and leaves an entry that is done as it is. So each example has
    what its own loop gives, also where the whole batch goes on for longer than a microbatch.
    """
    eqn.replace_positions()
    cond_consts, body_consts = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    first_carry = cond_consts + body_consts
    carry = list(eqn.ins[first_carry:])
    for _ in range(len(carry) + 1):
        carry, _ = _fixed_point(
            eqn,
            "body_jaxpr",
            eqn.params["body_jaxpr"],
            eqn.whole_params["body_jaxpr"],
            eqn.ins[cond_consts:first_carry],
            carry,
            (),
            eqn.part.outvars,
            first_carry,
        )
        part, whole = eqn.params["cond_jaxpr"], eqn.whole_params["cond_jaxpr"]
        (goes_on,) = eqn.run("cond_jaxpr", part, whole, [*eqn.ins[:cond_consts], *carry])
        if goes_on.kind is not Kind.ROWS:
            break
        ended = [_ended_by_example(value, goes_on) for value in carry]
        if ended == carry:
            return carry
        carry = ended
    if goes_on.kind not in (Kind.FREE, Kind.ZERO) or goes_on.own:
        raise NotProved(
            "has a loop whose condition combines the examples",
            "Give the loop a fixed number of iterations, such as jax.lax.fori_loop with a number.",
        )
    return decided_on_devices(goes_on, eqn.ins, carry)


def _ended_by_example(value: AbstractValue, goes_on: AbstractValue) -> AbstractValue:
    """What is carried by a loop that each example ends by itself."""
    hoistable = value.hoistable and goes_on.hoistable
    if not value.is_proved:
        return value
    if value.kind is Kind.ZERO and not goes_on.is_on_devices:
        return value.but(hoistable=hoistable)
    outer = join_outer(value.outer, goes_on.outer)
    is_alike = value.kind is Kind.ROWS and value.dim == goes_on.dim and outer is not None
    if not is_alike or goes_on.power or value.is_on_devices or goes_on.is_on_devices:
        raise NotProved(
            "has a loop with a condition for each example, which carries values that are not of that example alone"
        )
    assert outer is not None
    return value.but(outer=outer, hoistable=hoistable)


@rule("cond", loose=("branches",))
def cond(eqn: Equation) -> list[AbstractValue]:
    """One of several branches, chosen by what does not depend on the examples."""
    eqn.replace_positions()
    eqn.scale_to(0, 0)
    if eqn.ins[0].kind is not Kind.FREE or eqn.ins[0].own:
        raise NotProved(
            "chooses a branch by a value that combines the examples",
            "Choose for each example with jnp.where, or by something that is computed from the batch alone.",
        )
    branches = list(zip(eqn.params["branches"], eqn.whole_params["branches"], strict=True))
    results: list[list[AbstractValue]] = []
    for key, (part, whole) in enumerate(branches):
        found = eqn.run(("branches", key), part, whole, eqn.ins[1:], hoists=eqn.may_hoist, place=Place.BRANCH)
        results.append(found)
    joined = []
    for position, each in enumerate(zip(*results, strict=True)):
        atom = eqn.part.outvars[position]
        value = each[0]
        for other in each[1:]:
            value = _join(value, other, atom)
        value = value.but(hoistable=value.hoistable and eqn.ins[0].hoistable)
        if value.is_proved:
            for key, found in enumerate(each):
                power = _scale_between(found, value, atom)
                if power:
                    if not eqn.interpreter.can_edit:
                        raise NotProved("returns from one branch what depends on the size of the batch")
                    eqn.inner["branches", key].outs[position] = Scale(power)
        joined.append(value)
    return decided_on_devices(eqn.ins[0], eqn.ins[1:], joined)
