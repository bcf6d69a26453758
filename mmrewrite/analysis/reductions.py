"""Whether a loss visibly ends in a mean or a sum over the batch, and what else in it is about single examples."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from mmrewrite.analysis.gradients import is_gradient_decorator
from mmrewrite.analysis.losses import Loss, find_function, keeps_values
from mmrewrite.codemod.site import Site

MEAN, SUM = "mean", "sum"

_REDUCTIONS = {
    **{f"{module}.{name}": name for module in ("jax.numpy", "numpy") for name in (MEAN, SUM)},
}
_HARMLESS = frozenset(f"builtins.{name}" for name in ("len", "int", "float", "max", "min", "sum"))
_DEPTH = 4


@dataclass(frozen=True, eq=False)
class Fixed:
    """What is the same in every microbatch: what `loss` takes from outside, and parameters of it that are not cut.

    `cut` are the positions of the parameters that are, None where that is computed; `names` are names that the loss
    will be given as such.
    """

    loss: Loss
    cut: frozenset[int] | None
    names: frozenset[str] = frozenset()

    def holds(self, where: Loss, node: ast.expr) -> bool:
        """Whether an expression in the body of `where`, which the loss calls, does not depend on the microbatch."""
        match node:
            case ast.Constant():
                return isinstance(node.value, int | float)
            case ast.Name():
                return self.is_outside(where, node.id)
            case ast.Attribute():
                return self.holds(where, node.value)
            case ast.Subscript():
                return self.holds(where, node.value) and self.holds(where, node.slice)
            case ast.UnaryOp():
                return self.holds(where, node.operand)
            case ast.BinOp():
                return self.holds(where, node.left) and self.holds(where, node.right)
            case ast.Call():
                name = where.facts.names.resolve(node.func, where.scope) or ""
                harmless = name in _HARMLESS or name.startswith("jax.numpy.")
                return harmless and not node.keywords and all(self.holds(where, each) for each in node.args)
        return False

    def is_outside(self, where: Loss, name: str) -> bool:
        """Whether a name has a value that was there before the loss was called."""
        owner = where.scope.owner(name)
        if owner is None or name in self.names:
            return False
        if owner is self.loss.scope and all(binding.kind == "parameter" for binding in owner.bindings[name]):
            is_keyword = name in self.loss.by_keyword
            return self.cut is not None and (is_keyword or self.loss.parameters.index(name) not in self.cut)
        outer = self.loss.scope.parent
        return owner.kind == "module" or (outer is not None and owner in outer.chain())


def reduction_of(site: Site, loss: Loss, has_aux: bool, fixed: Fixed, depth: int = _DEPTH) -> str | None:
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
        found.add(_reduction(site, loss, value, fixed, depth) if value is not None else None)
    return found.pop() if len(found) == 1 else None


def by_example(site: Site, loss: Loss, fixed: Fixed) -> str | None:
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
            if name in feeding and _reduction(site, loss, node, fixed, _DEPTH) is None and _is_call(loss, name):
                return name
    return None


def fixed_divisor(loss: Loss, has_aux: bool, fixed: Fixed) -> ast.expr | None:
    """What is the same in every microbatch, such as the size of the whole batch, and the loss is divided by."""
    for result in loss.results():
        node: ast.expr | None = _first_of(loss, result) if has_aux else result
        while isinstance(node, ast.Name):
            binding = loss.facts.names.binding(node.id, loss.scope)
            node = binding.value if binding is not None and loss.scope.owner(node.id) is loss.scope else None
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div) or isinstance(node.right, ast.Constant):
            continue
        if fixed.holds(loss, node.right):
            return node.right
    return None


def is_size(loss: Loss, node: ast.expr) -> bool:
    """Whether an expression, or what it names, is a number of rows: `x.shape[0]`, `len(x)`."""
    if isinstance(node, ast.Name):
        binding = loss.facts.names.binding(node.id, loss.scope)
        return binding is not None and binding.value is not None and is_size(loss, binding.value)
    if isinstance(node, ast.Subscript):
        return isinstance(node.value, ast.Attribute) and node.value.attr == "shape"
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "len"


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


def _reduction(site: Site, loss: Loss, node: ast.expr, fixed: Fixed, depth: int) -> str | None:
    if depth == 0:
        return None
    names, scope = loss.facts.names, loss.scope
    match node:
        case ast.Name():
            binding = names.binding(node.id, scope)
            inside = binding is not None and scope.owner(node.id) is scope and binding.value is not None
            return _reduction(site, loss, binding.value, fixed, depth) if inside and binding and binding.value else None
        case ast.UnaryOp(op=ast.USub() | ast.UAdd()):
            return _reduction(site, loss, node.operand, fixed, depth)
        case ast.BinOp(op=ast.Mult() | ast.Div() as op):
            factors = [(node.left, node.right), *([(node.right, node.left)] if isinstance(op, ast.Mult) else [])]
            found = (_reduction(site, loss, one, fixed, depth) for one, other in factors if fixed.holds(loss, other))
            return next((each for each in found if each is not None), None)
        case ast.BinOp(op=ast.Add() | ast.Sub()):
            # A sum plus something that the batch has no part in would count that once for every microbatch.
            sides = [side for side in (node.left, node.right) if not _is_constant(side)]
            return MEAN if sides and all(_reduction(site, loss, side, fixed, depth) == MEAN for side in sides) else None
        case ast.Call():
            reduced = _reduction_call(loss, node)
            if reduced is not None:
                whole = _is_whole(reduced) and not _reduces_batch(loss, reduced.operand, set())
                return reduced.name if whole else None
            inner = find_function(site, node.func, loss.facts, scope)
            return reduction_of(site, inner, False, fixed, depth - 1) if inner is not None else None
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
