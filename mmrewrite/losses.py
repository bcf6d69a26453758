"""What a loss function visibly does over the batch: end in a mean or a sum, change state, use a random key."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from mmrewrite.functions import own_nodes, returns_of
from mmrewrite.gradients import is_gradient_decorator
from mmrewrite.names import Scope, all_arguments, dotted_name
from mmrewrite.project import Facts
from mmrewrite.site import Site

MEAN, SUM = "mean", "sum"

_REDUCTIONS = {
    **{f"{module}.{name}": name for module in ("jax.numpy", "numpy") for name in (MEAN, SUM)},
}
_KEY_WORDS = re.compile(r"(^|_)(rngs?|keys?|prng|prngs)\d*($|_)|rng\d*$|[a-z]key\d*$")
_BATCH_NORMS = frozenset(("flax.linen.BatchNorm", "flax.nnx.BatchNorm"))
_TRANSPARENT = frozenset(("jax.jit", "jax.checkpoint", "jax.named_call"))
_DEPTH = 4

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True, eq=False)
class Loss:
    """The function that is differentiated, and where it is defined.

    `before` are parameters that a transformation puts before its own, as `hk.transform` does.
    """

    facts: Facts
    node: Definition
    before: tuple[str, ...] = ()

    @property
    def scope(self) -> Scope:
        """The scope of its body."""
        return self.facts.names.inner[self.node]

    @property
    def parameters(self) -> list[str]:
        """Names of its parameters, in order."""
        return [*self.before, *(argument.arg for argument in all_arguments(self.node.args))]

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
    if isinstance(node, ast.Attribute) and node.attr == "apply":
        transformed = _transformed(site, node.value, facts, scope, depth)
        if transformed is not None:
            return transformed
    dotted = dotted_name(node)
    qualified = facts.names.resolve_dotted(dotted, scope) if dotted else None
    found = site.project.definition(qualified, facts) if qualified else None
    if found is not None and isinstance(found[1].node, ast.FunctionDef | ast.AsyncFunctionDef):
        return Loss(found[0], found[1].node)
    return None


def _transformed(site: Site, node: ast.expr, facts: Facts, scope: Scope, depth: int) -> Loss | None:
    """The function that Haiku made the pair of `init` and `apply` from which `node` is."""
    if isinstance(node, ast.Name):
        binding = facts.names.binding(node.id, scope)
        owner = scope.owner(node.id) or scope
        return (
            _transformed(site, binding.value, facts, owner, depth)
            if binding is not None and binding.value is not None
            else None
        )
    if not isinstance(node, ast.Call) or not node.args:
        return None
    name = facts.names.resolve(node.func, scope)
    if name == "haiku.transform":
        inner = find_function(site, node.args[0], facts, scope, depth - 1)
        return None if inner is None else dataclasses.replace(inner, before=("params", "rng"))
    if name == "haiku.without_apply_rng":
        inner = _transformed(site, node.args[0], facts, scope, depth)
        return None if inner is None else dataclasses.replace(inner, before=("params",))
    return None


def reduction_of(site: Site, loss: Loss, has_aux: bool, depth: int = _DEPTH) -> str | None:
    """`mean` or `sum` when every result visibly is one over the whole batch, else None."""
    decorators = getattr(loss.node, "decorator_list", ())
    outside = loss.facts.names.inner[loss.node].parent or loss.facts.names.scope
    for decorator in decorators:
        differentiated = is_gradient_decorator(loss.facts.names, decorator, outside) is not None
        if not differentiated and not keeps_values(loss.facts, decorator, outside):
            return None
    found = set()
    for result in loss.results():
        value: ast.expr | None = result
        if has_aux:
            value = _first_of(loss, result)
        found.add(_reduction(site, loss, value, depth) if value is not None else None)
    return found.pop() if len(found) == 1 else None


def keeps_values(facts: Facts, decorator: ast.expr, scope: Scope) -> bool:
    """Whether a decorator is known to leave what a function returns as it is."""
    names = [decorator, *([decorator.func, *decorator.args[:1]] if isinstance(decorator, ast.Call) else [])]
    return any(facts.names.resolve(name, scope) in _TRANSPARENT for name in names)


def by_example(site: Site, loss: Loss) -> str | None:
    """A result beside the loss that the loss is computed from before any reduction, such as `logits`."""
    for result in loss.results():
        if isinstance(result, ast.Name):
            binding = loss.facts.names.binding(result.id, loss.scope)
            result = binding.value if binding and binding.value is not None else result
        if not isinstance(result, ast.Tuple) or len(result.elts) != 2:
            continue
        feeding = _feeding(loss, result.elts[0], set())
        for name in _plain_names(result.elts[1]):
            node = ast.Name(name, ast.Load())
            if name in feeding and _reduction(site, loss, node, _DEPTH) is None and _is_call(loss, name):
                return name
    return None


def _feeding(loss: Loss, node: ast.expr, seen: set[str]) -> set[str]:
    """Local names that an expression is computed from."""
    for child in ast.walk(node):
        if isinstance(child, ast.Name) and child.id not in seen and loss.scope.owner(child.id) is loss.scope:
            seen.add(child.id)
            for binding in loss.scope.bindings[child.id]:
                source = binding.statement
                if isinstance(source, ast.Assign) and binding.kind != "parameter":
                    _feeding(loss, source.value, seen)
    return seen


def _plain_names(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Tuple | ast.List):
        for item in node.elts:
            yield from _plain_names(item)
    elif isinstance(node, ast.Dict):
        for item in node.values:
            yield from _plain_names(item)


def _is_call(loss: Loss, name: str) -> bool:
    """Whether a name is the result of one call that is no reduction, as that of a model is."""
    binding = loss.facts.names.binding(name, loss.scope)
    value = binding.value if binding is not None else None
    return isinstance(value, ast.Call) and _reduction_call(loss, value) is None


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
            # A sum plus something that the batch has no part in would count that once for every microbatch.
            sides = [side for side in (node.left, node.right) if not _is_constant(side)]
            return MEAN if sides and all(_reduction(site, loss, side, depth) == MEAN for side in sides) else None
        case ast.Call():
            reduced = _reduction_call(loss, node)
            if reduced is not None:
                whole = _is_whole(reduced) and not _reduces_batch(loss, reduced.operand, set())
                return reduced.name if whole else None
            inner = find_function(site, node.func, loss.facts, scope)
            return reduction_of(site, inner, has_aux=False, depth=depth - 1) if inner is not None else None
    return None


@dataclass(frozen=True, eq=False)
class _Reduced:
    """A mean or a sum: its name, what it is taken of, and the positional arguments after that."""

    name: str
    call: ast.Call
    operand: ast.expr
    further: list[ast.expr]


def _reduction_call(loss: Loss, node: ast.Call) -> _Reduced | None:
    found = _REDUCTIONS.get(loss.facts.names.resolve(node.func, loss.scope) or "")
    if found is not None and node.args:
        return _Reduced(found, node, node.args[0], node.args[1:])
    if isinstance(node.func, ast.Attribute) and node.func.attr in (MEAN, SUM):
        base = loss.facts.names.resolve(node.func.value, loss.scope)
        if base is None:
            return _Reduced(node.func.attr, node, node.func.value, node.args)
    return None


def _is_whole(reduced: _Reduced) -> bool:
    """Whether a reduction is over everything: no axis, no `where=`, no weights."""
    keywords = {keyword.arg: keyword.value for keyword in reduced.call.keywords if keyword.arg != "dtype"}
    axis = keywords.pop("axis", None)
    no_axis = axis is None or (isinstance(axis, ast.Constant) and axis.value is None)
    return not keywords and no_axis and not reduced.further


def _reduces_batch(loss: Loss, node: ast.expr, seen: set[str]) -> bool:
    """Whether something that goes into a reduction may have been reduced over the batch before."""
    for child in ast.walk(node):
        if isinstance(child, ast.Call):
            reduced = _reduction_call(loss, child)
            if reduced is not None and not _keeps_batch(reduced):
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


def _keeps_batch(reduced: _Reduced) -> bool:
    """Whether a reduction names axes, none of which can be the first."""
    axis = next((keyword.value for keyword in reduced.call.keywords if keyword.arg == "axis"), None)
    if axis is None and reduced.further:
        axis = reduced.further[0]
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


def changes_collections(nodes: Iterable[ast.AST]) -> ast.Call | None:
    """The call that returns changed collections: `model.apply(..., mutable=["batch_stats"])`."""
    for node in nodes:
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
