"""Calls of optimizers, and what to write where one stands outside of the step that makes its gradients."""

from __future__ import annotations

import ast

from mmrewrite.source.names import Module, Scope, dotted_name

# Optimizers and transformations of optax that look at each array alone, so that it matters to none where others are.
OF_EACH_ARRAY = frozenset(
    (
        *("adadelta", "adagrad", "fromage", "lars", "lion", "optimistic_gradient_descent", "rmsprop"),
        *("rprop", "sgd", "sign_sgd", "signum", "sm3", "add_decayed_weights", "clip", "clip_by_block_rms"),
        *("identity", "scale", "scale_by_learning_rate", "scale_by_lion", "scale_by_rms", "scale_by_schedule"),
        *("scale_by_sign", "scale_by_sm3", "scale_by_trust_ratio", "set_to_zero", "trace", "zero_nans"),
    )
)
# What nnx has besides with an `update`: it is given numbers.
_METRICS = frozenset(("Accuracy", "Average", "Metric", "MultiMetric", "Welford"))
# The optimizers of nnx, which hold one of optax.
_OBJECTS = frozenset(("Optimizer", "ModelAndOptimizer"))
# What to write where a call cannot be compiled by itself; for the name of a compiler.
IN_A_FUNCTION = "make this call in a function that `{}` compiles, with `# mm: mjit`, which runs on each stage"


def works_on_all_arrays(call: ast.Call, names: Module, scope: Scope) -> bool:
    """Whether a call is that of an optimizer which works on the gradients of all stages at once.

    Either `optimizer.update(gradients, state, ...)`, as optax and `nnx.Optimizer` have it, or
    `state.apply_gradients(grads=...)`. Most of optax's optimizers compile a part of their work for all arrays.
    """
    function = call.func
    if not isinstance(function, ast.Attribute):
        return False
    if function.attr == "update" and len(call.args) + len(call.keywords) > 1:
        return not _looks_at_each_array(function.value, names, scope, depth=3)
    return function.attr == "apply_gradients"


def compiled_apart(call: ast.Call, names: Module, scope: Scope, *, objects: bool) -> str:
    """What to write instead of such a call where nothing compiles it.

    Args:
        call: The call.
        names: The names of its module.
        scope: Where it stands.
        objects: Whether the program's steps change objects, so that an optimizer that is not seen may be one.
    """
    function = call.func
    assert isinstance(function, ast.Attribute)
    made = _value_of(function.value, scope)
    library = (names.resolve(made.func, scope) or "") if isinstance(made, ast.Call) else ""
    if library.startswith("flax.nnx.") or (objects and not library):
        return IN_A_FUNCTION.format("nnx.jit")
    if function.attr == "update" and dotted_name(function) is not None:
        name = "update" if scope.owner("update") is None else "update_params"
        written = f"{name} = jax.jit({ast.unparse(function)})"
        return f"write `{written}  # mm: mjit` once, above the loop, and call `{name}` here, which runs on each stage"
    return IN_A_FUNCTION.format("jax.jit")


def _looks_at_each_array(optimizer: ast.expr, names: Module, scope: Scope, depth: int) -> bool:
    """Whether an expression is seen to be an optimizer, or a chain of those, that looks at each array alone.

    Or no optimizer: dictionaries and the metrics of nnx have an `update`, too.
    """
    made = _value_of(optimizer, scope)
    if isinstance(made, ast.Dict | ast.DictComp):
        return True
    if not isinstance(made, ast.Call) or depth == 0:
        return False
    library, _, name = (names.resolve(made.func, scope) or "").rpartition(".")
    if library in ("flax.nnx", "flax.nnx.metrics") and name in _METRICS:
        return True
    if library == "flax.nnx" and name in _OBJECTS and len(made.args) > 1:
        return _looks_at_each_array(made.args[1], names, scope, depth - 1)
    if library != "optax":
        return False
    if name == "chain":
        return all(_looks_at_each_array(each, names, scope, depth - 1) for each in made.args)
    # `bias_correction`, the fifth argument at the earliest, is compiled for all arrays.
    corrects = len(made.args) > 4 or any(keyword.arg in (None, "bias_correction") for keyword in made.keywords)
    return name in OF_EACH_ARRAY and not corrects


def _value_of(node: ast.expr, scope: Scope) -> ast.expr | None:
    """The one value that an expression names, or the expression itself."""
    if isinstance(node, ast.Name) and (owner := scope.owner(node.id)) is not None:
        values = [binding.value for binding in owner.bindings[node.id]]
        return values[0] if len(values) == 1 else None
    return node
