"""What a `stages` hint says, as the arguments of the runtime's functions."""

from __future__ import annotations

import ast

from mmrewrite.codemod.site import Site


def stage_details(site: Site, *, counted: bool) -> dict[str, str]:
    """`axis=` and `weights=` as source text; weights of "flops" are left out unless the runtime counts them here."""
    axis, weights = site.hint.argument("axis"), site.hint.argument("weights")
    if axis is None:
        site.check_axis("stage", site.hint.start, site.hint.end - site.hint.start)
    elif isinstance(axis.value, ast.Constant):
        site.check_axis(str(axis.value.value), axis.start, len(axis.text))
    details = {"axis": '"stage"' if axis is None else axis.text}
    if weights is not None and (counted or not isinstance(weights.value, ast.Constant)):
        details["weights"] = weights.text
    return details
