"""How layers, or other items in a row, are cut into contiguous parts."""

from __future__ import annotations

import functools
from collections.abc import Sequence


def cut(weights: Sequence[float], parts: int) -> tuple[int, ...]:
    """Cut a sequence into contiguous non-empty parts whose heaviest one is as light as it can be.

    Dynamic programming over (items, parts), the linear partition problem (Skiena, The Algorithm Design
    Manual, section 10.7). Among equally good cuts, the parts' sizes are kept as even as possible.

    Args:
        weights: Cost of each item, any unit, not negative.
        parts: How many parts, at most `len(weights)`.

    Returns:
        `parts + 1` bounds: part k holds items `bounds[k]:bounds[k + 1]`.
    """
    return _cut(tuple(weights), parts)


# Every layer of a model asks for the same cut.
@functools.lru_cache(maxsize=128)
def _cut(weights: tuple[float, ...], parts: int) -> tuple[int, ...]:
    count = len(weights)
    total = [0.0]
    for weight in weights:
        total.append(total[-1] + weight)
    # best[k][i]: (heaviest part, sum of squared sizes) of the first i items in k parts.
    best: list[dict[int, tuple[float, int]]] = [{0: (0.0, 0)}]
    back: list[dict[int, int]] = [{}]
    for k in range(1, parts + 1):
        row: dict[int, tuple[float, int]] = {}
        source: dict[int, int] = {}
        for i in range(k, count - (parts - k) + 1):
            for j, (heaviest, squares) in best[k - 1].items():
                if j >= i:
                    continue
                value = (max(heaviest, total[i] - total[j]), squares + (i - j) ** 2)
                if i not in row or value < row[i]:
                    row[i], source[i] = value, j
        best.append(row)
        back.append(source)
    bounds = [count]
    for k in range(parts, 0, -1):
        bounds.append(back[k][bounds[-1]])
    return tuple(reversed(bounds))
