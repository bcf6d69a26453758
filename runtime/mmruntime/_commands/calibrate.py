"""Time the matrix products of a layer on this machine's accelerator, and print what it can do as JSON.

    python -m mmruntime._commands.calibrate '{"[[64, 32], [32, 8], [[[1], [0]], [[], []]], \\"float32\\"]": 3}'

This is the other end of `mmrewrite suggest --calibrate`. One device is enough; links are not measured.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

_REPEATS, _ISSUED, _BYTES = 5, 100, 2**28


def calibrate(dots: Mapping[str, float]) -> dict[str, Any]:
    """What the first device does: its kind, operations per second by type, bytes per second, seconds of a launch.

    Args:
        dots: How often each product is made, as `PassCost.dots` has them.
    """
    launch = _launch()
    work: dict[str, float] = {}
    spent: dict[str, float] = {}
    for text, times in dots.items():
        left, right, (contracted, batch), kind = json.loads(text)
        numbers = (tuple(contracted[0]), tuple(contracted[1])), (tuple(batch[0]), tuple(batch[1]))
        operands = jnp.ones(left, kind), jnp.ones(right, kind)
        product = jax.jit(functools.partial(jax.lax.dot_general, dimension_numbers=numbers))
        flops = 2.0 * product(*operands).size
        for dimension in numbers[0][0]:
            flops *= left[dimension]
        seconds = max(_shortest(functools.partial(product, *operands)) - launch, 1e-9)
        work[kind] = work.get(kind, 0.0) + times * flops
        spent[kind] = spent.get(kind, 0.0) + times * seconds
    array = jnp.ones(_BYTES // 4, jnp.float32)
    add = jax.jit(lambda x: x + 1)
    bandwidth = 2 * _BYTES / max(_shortest(functools.partial(add, array)) - launch, 1e-9)
    return {
        "kind": jax.devices()[0].device_kind,
        "speeds": {kind: work[kind] / spent[kind] for kind in sorted(work)},
        "bandwidth": bandwidth,
        "launch": launch,
    }


def _launch() -> float:
    """Seconds to issue a program, of many that are issued one after the other."""
    add = jax.jit(lambda x: x + 1)
    value = add(jnp.zeros(()))

    def issued() -> Any:
        found = value
        for _ in range(_ISSUED):
            found = add(found)
        return found

    return _shortest(issued) / _ISSUED


def _shortest(run: Callable[[], Any]) -> float:
    """Seconds of the shortest of some runs; the first one compiles."""
    jax.block_until_ready(run())
    times = []
    for _ in range(_REPEATS):
        begun = time.perf_counter()
        jax.block_until_ready(run())
        times.append(time.perf_counter() - begun)
    return min(times)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the document, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m mmruntime._commands.calibrate", description=__doc__)
    parser.add_argument("dots", type=json.loads)
    print(json.dumps(calibrate(parser.parse_args(arguments).dots)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
