"""What a loss function visibly does over the batch: end in a mean or a sum, change state, use a random key."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from mmrewrite.functions import own_nodes, returns_of
from mmrewrite.names import Scope, all_arguments, dotted_name
from mmrewrite.project import Facts
from mmrewrite.site import Site

MEAN, SUM = "mean", "sum"

_REDUCTIONS = {
    **{f"{module}.{name}": name for module in ("jax.numpy", "numpy") for name in (MEAN, SUM)},
}
_KEY_WORDS = re.compile(r"(^|_)(rngs?|keys?|prng|prngs)\d*($|_)|rng\d*$|[a-z]key\d*$")
_BATCH_NORMS = frozenset(("flax.linen.BatchNorm", "flax.nnx.BatchNorm"))
_DEPTH = 4

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True, eq=False)
class Loss:
    """The function that is differentiated, and where it is defined."""

    facts: Facts
    node: Definition

    @property
    def scope(self) -> Scope:
        """The scope of its body."""
        return self.facts.names.inner[self.node]

    @property
    def parameters(self) -> list[str]:
        """Names of its parameters, in order."""
        return [argument.arg for argument in all_arguments(self.node.args)]

    def results(self) -> Iterator[ast.expr]:
        """The expressions that it returns."""
        if isinstance(self.node, ast.Lambda):
            yield self.node.body
        else:
            yield from (statement.value for statement in returns_of(self.node) if statement.value is not None)

    def nodes(self) -> Iterator[ast.AST]:
        """Everything in its body."""
        yield from ast.walk(self.node.body) if isinstance(self.node, ast.Lambda) else own_nodes(self.node)


def find_function(site: Site, node: ast.expr, facts: Facts, scope: Scope, depth: int = _DEPTH) -> Loss | None:
    """The definition that an expression stands for, through names and `functools.partial`."""
    if depth == 0:
        return None
    if isinstance(node, ast.Lambda):
        return Loss(facts, node)
    if isinstance(node, ast.Call) and facts.names.resolve(node.func, scope) == "functools.partial" and node.args:
        return find_function(site, node.args[0], facts, scope, depth - 1)
    if isinstance(node, ast.Name):
        binding = facts.names.binding(node.id, scope)
        if binding is not None and isinstance(binding.node, ast.FunctionDef | ast.AsyncFunctionDef):
            return Loss(facts, binding.node)
        if binding is not None and binding.value is not None:
            owner = scope.owner(node.id)
            return find_function(site, binding.value, facts, owner or scope, depth - 1)
    dotted = dotted_name(node)
    qualified = facts.names.resolve_dotted(dotted, scope) if dotted else None
    found = site.project.definition(qualified, facts) if qualified else None
    if found is not None and isinstance(found[1].node, ast.FunctionDef | ast.AsyncFunctionDef):
        return Loss(found[0], found[1].node)
    return None


def reduction_of(site: Site, loss: Loss, has_aux: bool, depth: int = _DEPTH) -> str | None:
    """`mean` or `sum` when every result visibly is one over the whole batch, else None."""
    found = set()
    for result in loss.results():
        value: ast.expr | None = result
        if has_aux:
            value = _first_of(loss, result)
        found.add(_reduction(site, loss, value, depth) if value is not None else None)
    return found.pop() if len(found) == 1 else None


def _first_of(loss: Loss, result: ast.expr) -> ast.expr | None:
    if isinstance(result, ast.Name):
        binding = loss.facts.names.binding(result.id, loss.scope)
        result = binding.value if binding and binding.value is not None else result
    return result.elts[0] if isinstance(result, ast.Tuple) and result.elts else None


def _reduction(site: Site, loss: Loss, node: ast.expr, depth: int) -> str | None:
    if depth == 0:
        return None
    names, scope = loss.facts.names, loss.scope
    match node:
        case ast.Name():
            binding = names.binding(node.id, scope)
            inside = binding is not None and scope.owner(node.id) is scope and binding.value is not None
            return _reduction(site, loss, binding.value, depth) if inside and binding and binding.value else None
        case ast.UnaryOp(op=ast.USub() | ast.UAdd()):
            return _reduction(site, loss, node.operand, depth)
        case ast.BinOp(op=ast.Mult() | ast.Div()) if _is_constant(node.right):
            return _reduction(site, loss, node.left, depth)
        case ast.BinOp(op=ast.Mult()) if _is_constant(node.left):
            return _reduction(site, loss, node.right, depth)
        case ast.BinOp(op=ast.Add() | ast.Sub()):
            sides = {_reduction(site, loss, side, depth) for side in (node.left, node.right)}
            return sides.pop() if len(sides) == 1 else None
        case ast.Call():
            reduced = _reduction_call(loss, node)
            if reduced is not None:
                name, operand = reduced
                return name if _is_whole(node) and not _reduces_batch(loss, operand, set()) else None
            inner = find_function(site, node.func, loss.facts, scope)
            return reduction_of(site, inner, has_aux=False, depth=depth - 1) if inner is not None else None
    return None


def _reduction_call(loss: Loss, node: ast.Call) -> tuple[str, ast.expr] | None:
    """The name of a mean or a sum and what it is taken of."""
    found = _REDUCTIONS.get(loss.facts.names.resolve(node.func, loss.scope) or "")
    if found is not None and node.args:
        return found, node.args[0]
    if isinstance(node.func, ast.Attribute) and node.func.attr in (MEAN, SUM):
        base = loss.facts.names.resolve(node.func.value, loss.scope)
        if base is None:
            return node.func.attr, node.func.value
    return None


def _axis(node: ast.Call) -> ast.expr | None:
    for keyword in node.keywords:
        if keyword.arg == "axis":
            return keyword.value
    position = 0 if isinstance(node.func, ast.Attribute) and node.func.attr in (MEAN, SUM) else 1
    return node.args[position] if len(node.args) > position else None


def _is_whole(node: ast.Call) -> bool:
    """Whether a reduction is over everything: no `where=`, no weights, no axis."""
    keywords = {keyword.arg for keyword in node.keywords} - {"dtype"}
    axes = [keyword.value for keyword in node.keywords if keyword.arg == "axis"]
    none = all(isinstance(axis, ast.Constant) and axis.value is None for axis in axes)
    arguments = len(node.args) - (0 if _is_method(node) else 1)
    return keywords <= {"axis"} and none and arguments <= 0


def _is_method(node: ast.Call) -> bool:
    dotted = dotted_name(node.func)
    return dotted is None or dotted.partition(".")[0] not in ("jnp", "np", "jax", "numpy")


def _reduces_batch(loss: Loss, node: ast.expr, seen: set[str]) -> bool:
    """Whether something that goes into a reduction may have been reduced over the batch before."""
    for child in ast.walk(node):
        if isinstance(child, ast.Call):
            reduced = _reduction_call(loss, child)
            if reduced is not None and not _keeps_batch(child):
                return True
        elif isinstance(child, ast.Name) and child.id not in seen:
            seen.add(child.id)
            binding = loss.facts.names.binding(child.id, loss.scope)
            local = loss.scope.owner(child.id) is loss.scope
            if (
                local
                and binding is not None
                and binding.value is not None
                and _reduces_batch(loss, binding.value, seen)
            ):
                return True
    return False


def _keeps_batch(node: ast.Call) -> bool:
    """Whether a reduction names axes, none of which can be the first."""
    axis = next((keyword.value for keyword in node.keywords if keyword.arg == "axis"), None)
    if axis is None and node.args:
        axis = node.args[-1]
    parts = axis.elts if isinstance(axis, ast.Tuple | ast.List) else [axis]
    for part in parts:
        negative = isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.USub)
        value = part.operand if isinstance(part, ast.UnaryOp) else part
        if not isinstance(value, ast.Constant) or type(value.value) is not int:
            return False
        if value.value == 0 and not negative:
            return False
    return True


def _is_constant(node: ast.expr) -> bool:
    inner = node.operand if isinstance(node, ast.UnaryOp) else node
    return isinstance(inner, ast.Constant) and isinstance(inner.value, int | float)


def looks_like_key(name: str) -> bool:
    """Whether a name is one that random keys have: `rng`, `dropout_key`, `keys`."""
    return _KEY_WORDS.search(name.lower()) is not None


def keys_closed_over(loss: Loss) -> list[str]:
    """Local names of the surrounding function that look like random keys and are used in the loss."""
    found = []
    for node in loss.nodes():
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and looks_like_key(node.id):
            owner = loss.scope.owner(node.id)
            if owner is not None and owner is not loss.scope and owner.kind == "function":
                found.append(node.id)
    return sorted(set(found))


def mutable_call(loss: Loss) -> ast.Call | None:
    """A call in the loss that returns changed collections: `model.apply(..., mutable=["batch_stats"])`."""
    for node in loss.nodes():
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                value = keyword.value
                if keyword.arg == "mutable" and not (
                    (isinstance(value, ast.Constant) and not value.value)
                    or (isinstance(value, ast.List | ast.Tuple) and not value.elts)
                ):
                    return node
    return None


def is_batch_norm(facts: Facts, node: ast.AST, scope: Scope) -> bool:
    """Whether a node names Flax's batch normalisation."""
    return isinstance(node, ast.Name | ast.Attribute) and facts.names.resolve(node, scope) in _BATCH_NORMS
