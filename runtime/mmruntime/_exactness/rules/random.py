"""Random numbers: a draw for each example is a fresh one in every microbatch."""

from __future__ import annotations

from mmruntime import _compat
from mmruntime._exactness.lattice import ANY, FREE, AbstractValue, Kind, rows
from mmruntime._exactness.rules.elementwise import entry_by_entry, reject_totals
from mmruntime._exactness.rules.equation import Equation, NotProved, common_rows, rule

# Draws whose first operand is a key, or several.
KEYED = ("random_bits", "random_split", "random_gamma")

# The draws of each generator that give every one of several keys its own numbers, whatever the others are. `rbg` takes
# the first of them for all.
_APART = {"threefry2x32": KEYED, "rbg": ("random_split",)}


def _check_keys(eqn: Equation, key: AbstractValue) -> None:
    """Refuses draws by the keys of a microbatch that are other numbers than those by the same keys of the batch."""
    generator = _compat.key_name(eqn.part.invars[0].aval.dtype)
    if key.kind is Kind.ROWS and eqn.name not in _APART.get(generator, ()):
        raise NotProved(
            f"draws random numbers from a key for each example by {generator!r}, which takes the first key of a batch "
            "for all of it",
            "Make the keys with impl='threefry2x32', which gives each its own numbers; or pass one key, and its "
            "position as rng=.",
        )


@rule("random_bits", "random_split", loose=("shape",))
def draws(eqn: Equation) -> AbstractValue:
    """Bits, or keys, of a shape.

    Which numbers the examples of a microbatch get is not what is proved: they are draws from the same distribution.
    """
    key = eqn.plain(0)
    reject_totals(eqn, [key])
    _check_keys(eqn, key)
    rank, grown = len(eqn.shape(0)), eqn.grown()
    if key.kind is Kind.ROWS:
        if grown != [key.dim] or key.dim >= rank:
            raise NotProved("draws random numbers in several dimensions of examples")
        return key
    if len(grown) > 1:
        raise NotProved("draws random numbers in several dimensions of examples")
    if grown:
        eqn.interpreter.note_draw(eqn)
        return rows(grown[0], ANY)
    return FREE


rule("random_fold_in", "random_clone")(entry_by_entry)


@rule("random_wrap")
def wrap(eqn: Equation) -> AbstractValue:
    """Key data as keys: without the last dimensions."""
    value = eqn.unscaled()[0]
    reject_totals(eqn, [value])
    if value.kind is Kind.ROWS and value.dim >= len(eqn.out_shape()):
        raise NotProved("makes random keys of the examples")
    return value


@rule("random_seed", "random_unwrap")
def one_each(eqn: Equation) -> AbstractValue:
    """Keys of integers, one for each; keys as key data, with more dimensions at the end."""
    value = eqn.unscaled()[0]
    reject_totals(eqn, [value])
    return value


@rule("random_gamma")
def gamma(eqn: Equation) -> AbstractValue:
    """Draws of a distribution with parameters of the same shape."""
    values = eqn.unscaled()
    reject_totals(eqn, values)
    _check_keys(eqn, values[0])
    value = common_rows(values) or FREE
    if value.kind is Kind.ROWS:
        eqn.interpreter.note_draw(eqn)
    return value


@rule("rng_uniform", loose=("shape",))
def rng_uniform(eqn: Equation) -> AbstractValue:
    """Numbers of a shape between two bounds, from the device's own generator."""
    if any(value.kind is not Kind.FREE or value.own for value in eqn.unscaled()):
        raise NotProved("draws random numbers between bounds that depend on the examples")
    if not (grown := eqn.grown()):
        return FREE
    if len(grown) > 1:
        raise NotProved("draws random numbers in several dimensions of examples")
    eqn.interpreter.note_draw(eqn)
    return rows(grown[0], ANY)


@rule("rng_bit_generator", loose=("shape",))
def rng_bit_generator(eqn: Equation) -> list[AbstractValue]:
    """A new key, and bits of a shape."""
    key = eqn.unscaled()[0]
    if key.kind is not Kind.FREE:
        raise NotProved("draws random numbers from a key that depends on the examples")
    bits = FREE
    if grown := eqn.grown(1):
        if len(grown) > 1:
            raise NotProved("draws random numbers in several dimensions of examples")
        eqn.interpreter.note_draw(eqn)
        bits = rows(grown[0], ANY)
    return [FREE, bits]
