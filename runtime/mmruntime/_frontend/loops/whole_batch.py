"""Hold a scan that adds up over pieces of a batch against one iteration on all of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from mmruntime import _compat
from mmruntime._exactness.prove import ArgumentSpec, Verdict, prove
from mmruntime._frontend.loops.find_scan import Scan, only_scan
from mmruntime._frontend.python_state import traced_again
from mmruntime._jaxpr.carry import changes, open_helpers


def iteration_on_all(fun: Callable[..., Any], args: Sequence[Any], kwargs: Any) -> Any:
    """The body of `jax.lax.scan(*args, **kwargs)`, traced for one iteration on all pieces joined.

    Returns:
        A closed jaxpr, as the scan's own body; None if `fun` is another function, if pieces have no dimension of
        examples, or if the body cannot be traced for all.
    """
    if fun is not jax.lax.scan:
        return None
    given = inspect.signature(jax.lax.scan).bind(*args, **kwargs).arguments
    leaves = jax.tree.leaves(given.get("xs"))
    if not leaves or any(np.ndim(leaf) < 2 for leaf in leaves):
        return None

    body, length = given["f"], np.shape(leaves[0])[0]

    def over(count: int) -> Any:
        """The scan over all examples in so many pieces."""

        def piece(leaf: Any) -> Any:
            size, *rest = np.shape(leaf)[1:]
            return jax.ShapeDtypeStruct((count, length * size // count, *rest), jax.numpy.result_type(leaf))

        scan = jax.make_jaxpr(lambda init, xs: jax.lax.scan(body, init, xs))
        try:
            return scan(given["init"], jax.tree.map(piece, given["xs"]))
        except Exception:
            # Whatever the body raises for another size, the loop as it is written does not need it.
            return None

    traced = traced_again(
        "microbatch_scan",
        body,
        {},
        lambda: over(1),
        [lambda: over(length)],
        "Add it to the carry of {} instead, or return it.",
    )
    if traced is None:
        return None
    eqn = only_scan(traced)
    return None if eqn is None else Scan.of(eqn).body


def verdicts_of_sums(scan: Scan, whole: Any, sums: Sequence[int]) -> list[Verdict | None]:
    """How the iterations' addends to some leaves of the carry relate to those of one iteration on all pieces.

    Args:
        scan: The scan, with its helpers opened.
        whole: Its body for all pieces.
        sums: Positions in the carry.

    Returns:
        A verdict for each; None where several values are added, or the two do not add alike.
    """
    carried = range(scan.num_consts, scan.num_consts + scan.num_carry)
    bodies = [scan.body, open_helpers(whole, carried)]
    added = []
    for body in bodies:
        jaxpr, _ = _compat.split(body)
        if len(jaxpr.invars) != len(_compat.split(scan.body)[0].invars):
            return [None] * len(sums)
        found = changes(jaxpr, [jaxpr.invars[index] for index in carried], jaxpr.outvars[: scan.num_carry])
        added.append([found[position].addends for position in sums])
    is_one = [
        all(len(each) == 1 and _compat.is_var(each[0].atom) for each in pair) for pair in zip(*added, strict=True)
    ]
    part, whole = (
        _compat.with_consts(
            jaxpr.replace(outvars=[each[0].atom for each, one in zip(atoms, is_one, strict=True) if one]), consts
        )
        for (jaxpr, consts), atoms in zip(map(_compat.split, bodies), added, strict=True)
    )
    arguments = [ArgumentSpec()] * carried.stop
    arguments += [ArgumentSpec(0)] * (len(_compat.split(part)[0].invars) - carried.stop)
    try:
        verdicts = iter(prove(part, whole, arguments, scan.length, as_written=True).verdicts)
    except ValueError:
        return [None] * len(sums)
    return [next(verdicts) if one else None for one in is_one]
