"""Random keys of a loss that a hint does not mention: unless folded, a key would be the same in every microbatch."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from mmrewrite.analysis.steps.gradients import Gradient
from mmrewrite.analysis.steps.losses import Loss, keys_closed_over, keys_of_the_module, looks_like_key, made_as_keys
from mmrewrite.codemod.site import Site

_REPEATED = "and would be the same in every microbatch"
_ELSEWHERE = "and write `rng=` with its position, or `rng=None` to use it as it is"


@dataclass(frozen=True)
class UnnamedKey:
    """A random key.

    Attributes:
        reason: What it is, and what to do first if no hint can name it.
        place: The text that `rng=` may have for it, None if no hint can name it yet.
    """

    reason: str
    place: str | None


def unnamed_keys(site: Site, gradient: Gradient, loss: Loss | None, cut: Collection[object]) -> list[UnnamedKey]:
    """The random keys among the arguments of a gradient's calls; else those that the loss takes or closes over.

    Args:
        site: The site of the hint.
        gradient: The gradient function.
        loss: What it differentiates, if that can be seen.
        cut: Positions of the arguments that are cut, and names of closed-over values that are.
    """
    found = {key.place: key for call in gradient.calls for key in _in_call(site, call, loss, cut)}
    if loss is not None and not found:
        found = {key.place: key for key in _in_loss(site, gradient, loss, cut)}
    return list(found.values())


def _in_call(site: Site, call: ast.Call, loss: Loss | None, cut: Collection[object]) -> Iterator[UnnamedKey]:
    for index, argument in enumerate(call.args):
        if isinstance(argument, ast.Starred):
            site.refuse("star-args may hide a random key; write `rng=` with its position, or `rng=None`", call)
        if index not in cut and _is_key(site, argument):
            yield UnnamedKey(f"`{site.text(argument)}` looks like a random key, {_REPEATED}", str(index))
    for keyword in call.keywords:
        name = keyword.arg or "**" + site.text(keyword.value)
        if keyword.arg is not None and not looks_like_key(name) and not _is_key(site, keyword.value):
            continue
        what = f"`{name}` looks like a random key, {_REPEATED}"
        if loss is not None and name in loss.parameters and name not in loss.by_keyword:
            yield UnnamedKey(what, f'"{name}"')
        else:
            star = " (remove the `*` before it)" if loss is not None and name in loss.by_keyword else ""
            yield UnnamedKey(f"{what}; pass it by position{star} {_ELSEWHERE}", None)


def _in_loss(site: Site, gradient: Gradient, loss: Loss, cut: Collection[object]) -> Iterator[UnnamedKey]:
    for index, name in enumerate(loss.parameters):
        if gradient.calls and not any(_gives(call, index, name) for call in gradient.calls):
            # It has its default, such as None.
            continue
        if (index not in cut or name in loss.by_keyword) and looks_like_key(name):
            yield UnnamedKey(f"the loss takes `{name}`, which looks like a random key, {_REPEATED}", str(index))
    for name in keys_closed_over(site, loss):
        if name in cut:
            continue
        what = f"the loss closes over `{name}`, which looks like a random key, {_REPEATED}"
        yield UnnamedKey(what, f'"{name}"')
    for name in keys_of_the_module(site, loss)[:1]:
        what = f"the loss uses the random key `{name}` of its module, which would be the same in every microbatch"
        yield UnnamedKey(f"{what}; pass it to the loss by position {_ELSEWHERE}", None)


def _gives(call: ast.Call, index: int, name: str) -> bool:
    """Whether a call may give a parameter of the loss a value."""
    hidden = any(isinstance(argument, ast.Starred) for argument in call.args)
    return hidden or index < len(call.args) or any(keyword.arg in (None, name) for keyword in call.keywords)


def _is_key(site: Site, node: ast.expr) -> bool:
    """Whether an argument is named like a random key, or made as one."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) if looks_like_key(name):
            return True
        case ast.Subscript(value=ast.Name() | ast.Attribute() as value) if _is_key(site, value):
            return True
        case ast.Dict(values=values):
            return any(_is_key(site, value) for value in values)
    return made_as_keys(site, site.facts, node) is not None
