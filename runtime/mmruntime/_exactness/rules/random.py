"""Random numbers: a draw for each example is a fresh one in every microbatch."""

from __future__ import annotations

from mmruntime import _compat
from mmruntime._exactness.lattice import ANY, FREE, AbstractValue, Kind, rows
from mmruntime._exactness.rules.elementwise import entry_by_entry
from mmruntime._exactness.rules.equation import Equation, NotProved, reject_totals, rule

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
    if key.kind is not Kind.ROWS:
        return _drawn(eqn)
    if eqn.grown() != [key.dim] or key.dim >= len(eqn.shape(0)):
        raise NotProved(_SEVERAL)
    return key


_SEVERAL = "draws random numbers in several dimensions of examples"


def _drawn(eqn: Equation, result: int = 0) -> AbstractValue:
    """A result that is drawn from what does not depend on the examples: anew for each, if it counts them."""
    grown = eqn.grown(result)
    if len(grown) > 1:
        raise NotProved(_SEVERAL)
    if not grown:
        return FREE
    eqn.interpreter.note_draw(eqn)
    return rows(grown[0], ANY)


rule("random_fold_in", "random_clone")(entry_by_entry)


@rule("random_wrap", "random_seed", "random_unwrap")
def wrap(eqn: Equation) -> AbstractValue:
    """Key data as keys, without the last dimensions; keys as key data; keys of integers, one for each."""
    value = eqn.by_example()
    if value.kind is Kind.ROWS and value.dim >= len(eqn.out_shape()):
        raise NotProved("makes random keys of the examples")
    return value


@rule("random_gamma")
def gamma(eqn: Equation) -> AbstractValue:
    """Draws of a distribution with parameters of the same shape."""
    value = eqn.by_example()
    _check_keys(eqn, eqn.ins[0])
    if value.kind is Kind.ROWS:
        eqn.interpreter.note_draw(eqn)
    return value


@rule("rng_uniform", loose=("shape",))
def rng_uniform(eqn: Equation) -> AbstractValue:
    """Numbers of a shape between two bounds, from the device's own generator."""
    if any(value.kind is not Kind.FREE or value.own for value in eqn.unscaled()):
        raise NotProved("draws random numbers between bounds that depend on the examples")
    return _drawn(eqn)


@rule("rng_bit_generator", loose=("shape",))
def rng_bit_generator(eqn: Equation) -> list[AbstractValue]:
    """A new key, and bits of a shape."""
    key = eqn.unscaled()[0]
    if key.kind is not Kind.FREE:
        raise NotProved("draws random numbers from a key that depends on the examples")
    return [FREE, _drawn(eqn, 1)]
