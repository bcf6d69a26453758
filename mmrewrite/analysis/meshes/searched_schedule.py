"""How the arguments of a `microbatch` hint are written for the runtime: a search within a bound is a value there."""

from __future__ import annotations

import ast

from mmrewrite.codemod.site import Site
from mmrewrite.directives.sizes import size_in_python


def runtime_arguments(site: Site) -> dict[str, str]:
    """The arguments of the hint by name, as source text: `schedule="auto"` and `memory_bytes=` are one argument.

    Reports a bound beside a schedule that is not searched for.
    """
    found = {argument.name or "": argument.text for argument in site.hint.arguments}
    schedule, bound = site.hint.argument("schedule"), site.hint.argument("memory_bytes")
    if schedule is None or bound is None:
        return found
    if not isinstance(schedule.value, ast.Constant) or schedule.value.value != "auto":
        site.error(
            f'`memory_bytes=` bounds the search of schedule="auto", and `schedule={schedule.text}` is not searched '
            'for; write schedule="auto", or leave `memory_bytes=` out',
            bound,
        )
    value = bound.value
    size = value.value if isinstance(value, ast.Constant) else None
    text = size_in_python(size) if isinstance(size, str) else bound.text
    del found["memory_bytes"]
    return found | {"schedule": f"{site.runtime}.schedules.Auto(memory_bytes={text})"}
