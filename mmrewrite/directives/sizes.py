"""Numbers of bytes as people write and read them.

What the runtime itself prints, as in `explain()`, is `mmruntime._inspect.report_text`; bounds of programs, given in GB
and MB, are `mmrewrite.mirror.limits`.
"""

from __future__ import annotations

import math
import re

_UNITS = {"B": 1} | {
    f"{prefix}{letters}": base**power
    for letters, base in (("B", 1000), ("iB", 1024))
    for power, prefix in enumerate(("K", "M", "G", "T"), start=1)
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)")


def parse_size(text: str) -> int:
    """A number of bytes such as `80GiB`, `16 GB` or `512MiB`.

    Raises:
        ValueError: If the text is no size.
    """
    number, unit = _number_and_unit(text)
    return int(float(number) * _UNITS[unit])


def size_in_python(text: str) -> str:
    """The same number as people write it in Python: `80GiB` is `80 * 2**30`, and `1.5MB` is `1.5 * 10**6`.

    Raises:
        ValueError: If the text is no size.
    """
    number, unit = _number_and_unit(text)
    power = " KMGT".index(unit[0]) if unit != "B" else 0
    factor = f"2**{10 * power}" if unit.endswith("iB") else f"10**{3 * power}"
    return number if not power else f"{number} * {factor}"


def _number_and_unit(text: str) -> tuple[str, str]:
    found = _SIZE.fullmatch(text.strip())
    unit = next((name for name in _UNITS if found and name.lower() == found[2].lower()), None)
    if found is None or unit is None or not 0 < float(found[1]) * _UNITS[unit] < math.inf:
        raise ValueError(f"{text!r} is no size; write a number and a unit, such as 80GiB or 512MB")
    return found[1], unit


def format_size(size: int) -> str:
    """A number of bytes in the largest binary unit that it fills."""
    unit = next((name for name in ("TiB", "GiB", "MiB", "KiB") if size >= _UNITS[name]), "B")
    return f"{size / _UNITS[unit]:.1f} {unit}" if unit != "B" else f"{size} B"
