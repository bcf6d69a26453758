"""One step back through functions of JAX, Flax, Equinox and NumPy that give what they are given, or trees of it."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from mmrewrite.values.arguments import given
from mmrewrite.values.classes import of_record_method
from mmrewrite.values.containers import paths_of_items
from mmrewrite.values.value import (
    ANY_ITEM,
    ELEMENT,
    Access,
    By,
    CallArguments,
    Display,
    GivenValue,
    Key,
    Path,
    Unknown,
    Value,
    attribute,
    item,
)

if TYPE_CHECKING:
    from mmrewrite.values.flow import ValueFlow

_Found = Iterator[Value | Unknown]
Form = Callable[["ValueFlow", Value, CallArguments, Path], _Found]
# The others that may give what they are given, or something that calls it. A test holds the releases that are installed
# against this.
MAY_GIVE_GIVEN = frozenset(
    (
        *(f"flax.core.{name}" for name in ("map_axis_meta", "unbox")),
        *(f"flax.linen.{name}" for name in ("add_metadata_axis", "compact", "compact_name_scope", "nowrap", "unbox")),
        *(
            f"flax.linen.{home}with_{name}"
            for home in ("", "partitioning.", "spmd.")
            for name in ("logical_constraint", "logical_partitioning", "partitioning", "sharding_constraint")
        ),
        *(
            f"flax.nnx.{name}"
            for name in ("RoPE", "abstract_with_sharding", "as_abstract", "as_pure", "cached_partial")
        ),
        *(f"flax.nnx.{name}" for name in ("capture", "checkify", "custom_vjp", "from_tree", "pure", "to_tree")),
        *(f"flax.nnx.{name}" for name in ("register_data_type", "register_variable_name", "update_context", "vars_as")),
        *(f"flax.nnx.with_{name}" for name in ("attributes", "metadata", "partitioning", "vars")),
        *(f"flax.serialization.{name}_state_dict" for name in ("from", "to")),
        *("jax.copy_to_host_async", "jax.custom_batching.sequential_vmap", "jax.experimental.checkify.checkify"),
        *(f"jax.{name}" for name in ("custom_gradient", "hessian", "jacfwd", "jacobian", "jacrev", "make_jaxpr")),
        *("jax.custom_derivatives.custom_gradient", "jax.lax.composite", "jax.tree_util.register_static"),
        *(f"jax.tree{home}{name}" for home in (".", "_util.tree_") for name in ("broadcast", "reduce_associative")),
        "optax.scale_gradient",
        *(
            f"optax.tree{home}{name}"
            for home in (".", "_utils.tree_")
            for name in ("cast_like", "get", "set", "unwrap_random_key_data")
        ),
    )
)
# Calls that give their first argument, or a copy of it.
_GIVE_FIRST = frozenset(
    (
        "jax.block_until_ready",
        # Of `graphdef, state = nnx.split(model)` the definition stands for the module.
        *("flax.nnx.clone", "flax.nnx.data", "flax.nnx.merge", "flax.nnx.static", "flax.nnx.view", "equinox.filter"),
        *("equinox.nn.inference_mode", "equinox.tree_inference"),
        *(f"flax.core.{home}{name}" for home in ("", "frozen_dict.") for name in ("freeze", "unfreeze")),
    )
)
# Arrays of anything, whatever their shape, and what gives the same entries in another one.
_ARRAYS = frozenset(f"numpy.{name}" for name in ("array", "asarray", "concatenate", "stack"))
_SAME_ENTRIES = frozenset(("copy", "flatten", "ravel", "reshape", "squeeze", "tolist", "transpose"))
# What these make of a function gives what the function gives, entry by entry.
_ENTRY_BY_ENTRY = frozenset(
    (
        *(f"jax.{name}" for name in ("checkpoint", "custom_jvp", "custom_vjp", "jit", "named_call", "pmap", "vmap")),
        *("jax.shard_map", "jax.experimental.shard_map.shard_map", "jax.numpy.vectorize", "numpy.vectorize"),
        *(f"flax.nnx.{name}" for name in ("jit", "pmap", "remat", "scan", "shard_map", "split_rngs", "vmap")),
        *(f"equinox.filter_{name}" for name in ("checkpoint", "jit", "pmap", "vmap")),
    )
)
_TREES = frozenset(
    form
    for name in ("flatten", "leaves", "map", "reduce", "structure", "unflatten")
    for form in (
        *(f"jax.tree.{name}", f"jax.tree_util.tree_{name}", f"jax.tree_{name}"),
        *(f"jax.tree.{name}_with_path", f"jax.tree_util.tree_{name}_with_path"),
    )
)
# What these give is put together anew, and so is each container in it.
MAKE_TREES = _ENTRY_BY_ENTRY | _TREES
# What these make of a class of Flax is a class that is called in the same way.
_GIVE_CLASS = frozenset(f"flax.linen.{name}" for name in ("checkpoint", "jit", "remat", "scan", "vmap"))
# The classes of variables of nnx.
VARIABLES = frozenset(
    f"flax.nnx.{name}"
    for name in (
        *("BatchStat", "Cache", "Intermediate", "LoRAParam", "Param", "Perturbation", "RngCount", "RngKey", "RngState"),
        "Variable",
    )
)
# What these make of a function gives its gradient.
GRADIENTS = frozenset(
    (
        *("jax.grad", "jax.value_and_grad", "flax.nnx.grad", "flax.nnx.value_and_grad"),
        *("equinox.filter_grad", "equinox.filter_value_and_grad"),
    )
)
# So deep in trees leaves are looked for.
_DEEPEST_LEAF = 3
_NO_PATH = Display((), is_mapping=False, is_loose=True)
CONTAINERS = (ast.Tuple, ast.List, ast.Dict, ast.ListComp, ast.DictComp, Display)


def of_first(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    """What a function gives that gives its first argument."""
    first = call.first()
    yield first.done(*rest) if first is not None else Unknown("an argument is not seen", value)


def _combined(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    """`eqx.combine(params, static)`: each part comes from one of its arguments."""
    yield from (each.done(*rest) for each in given(call))


def _split(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    """The parts of a module: the definition that `nnx.split` gives, or both modules of `eqx.partition`."""
    if rest and rest[0] in ((item(0), item(1)) if value.head == "equinox.partition" else (item(0),)):
        yield from of_first(flow, value, call, rest[1:])


def _tree_at(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    """`eqx.tree_at(lambda model: model.layers[0], model, layer)`."""
    second = call.at(1, "pytree")
    yield second.done(*rest) if second is not None else Unknown("an argument is not seen", value)
    where, replaced = call.at(0, "where"), call.at(2, "replace")
    part = where.head.body if where is not None and isinstance(where.head, ast.Lambda) else None
    count = 0
    while isinstance(part, ast.Attribute | ast.Subscript):
        part, count = part.value, count + 1
    if count and replaced is not None:
        yield replaced.done(*rest[count:]) if len(rest) >= count else Unknown("a part of it is replaced", value)
    else:
        yield Unknown("what is replaced in a tree is not seen", value)


def _variable(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    """`nnx.Param(x).value` and `nnx.Param(x)[...]`."""
    match rest:
        case (
            [Access(By.ATTRIBUTE, "value" | "raw_value"), *more]
            | [Access(By.ATTRIBUTE, "get_value"), Access(By.CALL), *more]
            | [Access(By.ITEM, Key(text=builtins.Ellipsis)), *more]
        ):
            yield from of_first(flow, value, call, (*more,))
        case _:
            pass


def _entry_by_entry(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    """`jit(f)(x)`, and `jit(static_argnums=0)(f)(x)`; `jit(f)` itself is where a value ends."""
    first = call.at(0, "fun")
    match rest:
        case [Access(By.CALL), Access(By.CALL), *_] if first is None:
            yield Value(value.module, value.head, rest)
        case [Access(By.CALL), *_] | [Access(By.BOUND), Access(By.CALL), *_] if first is not None:
            yield first.done(*rest)
        case _:
            pass


def _tree(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    """What JAX makes of the leaves of trees: `map(f, tree)`, `leaves(tree)`, `unflatten(treedef, leaves)`."""
    name, first = f"{value.head}".rpartition(".")[2].removeprefix("tree_"), call.first()
    if name.endswith("_with_path"):
        # A path stands before each leaf.
        name = name.removesuffix("_with_path")
        match name, rest:
            case "leaves", [Access(By.ELEMENT | By.ITEM) as step, Access(By.ITEM, Key(text=1)), *more]:
                rest = (step, *more)
            case "flatten", [Access(By.ITEM, Key(text=0)) as pairs, step, Access(By.ITEM, Key(text=1)), *more]:
                rest = (pairs, step, *more)
            case "leaves" | "flatten", _:
                return
            case _:
                pass
    match name, rest:
        case _ if first is None:
            yield Unknown("an argument is not seen", value)
        case "map", _:
            yield from _mapped_tree(flow, value, call, rest)
        case "reduce", _:
            yield from _reduced_tree(flow, call, rest)
        case "leaves", _:
            yield from _leaves(flow, first, rest)
        case "flatten", [Access(By.ITEM, Key(text=0)), *more]:
            yield from _leaves(flow, first, tuple(more))
        case "unflatten", _:
            yield first.done(attribute("unflatten"), Access(By.CALL, flow.rest_of(call)), *rest)
            yield from _of_leaves(value, call.at(1, "leaves"), rest)
        case ("structure", [Access(By.ATTRIBUTE, "unflatten"), Access(By.CALL, later), *more]) | (
            "flatten",
            [Access(By.ITEM), Access(By.ATTRIBUTE, "unflatten"), Access(By.CALL, later), *more],
        ):
            # It is such a tree as that before.
            yield first.done(*more)
            yield from _of_leaves(value, later.first(), tuple(more))
        case _:
            pass


def _reduced_tree(flow: ValueFlow, call: CallArguments, rest: Path) -> _Found:
    function, tree, start = call.at(0, "function"), call.at(1, "tree"), call.at(2, "initializer")
    if start is not None:
        yield start.done(*rest)
    if function is not None and tree is not None:
        leaves = Value(tree.module, "jax.tree.leaves", (Access(By.CALL, flow.call_with(tree)), ELEMENT))
        pair = flow.same(flow.call_of([leaves if start is None else start, leaves]), call, ELEMENT)
        yield function.done(Access(By.CALL, pair), *rest)


def _mapped_tree(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    function, tree = call.at(0, "f"), call.at(1, "tree")
    may_be_leaf, may_be_tree = _kinds_of_tree(flow, tree) if tree is not None else (True, True)
    if function is not None and may_be_leaf:
        paths = [GivenValue(Value(value.module, _NO_PATH))] if f"{value.head}".endswith("_with_path") else []
        leaves = flow.same(CallArguments([*paths, *call.positional[1:]]), call, ELEMENT)
        yield function.done(Access(By.CALL, leaves), *rest)
    for path, _ in paths_of_items(rest) if may_be_tree else ():
        parts = [each._replace(value=each.value.done(path[0])) for each in call.positional[1:]]
        inner = flow.same(CallArguments([*call.positional[:1], *parts]), call, path[0])
        yield Value(value.module, value.head, (Access(By.CALL, inner), *path[1:]))


def _kinds_of_tree(flow: ValueFlow, tree: Value) -> tuple[bool, bool]:
    """Whether something may be a leaf, and whether it may be a container of some."""
    kinds = [False, False]
    for is_tree, each in flow.walk(tree, lambda each: (isinstance(each.head, CONTAINERS) and not each.path) or None):
        kinds = [kinds[0] or not is_tree, kinds[1] or bool(is_tree) or isinstance(each, Unknown)]
        if all(kinds):
            break
    return kinds[0], kinds[1]


def _leaves(flow: ValueFlow, tree: Value, rest: Path) -> _Found:
    for path, _ in paths_of_items(rest):
        part, may_be_tree = tree, True
        for _ in range(_DEEPEST_LEAF):
            may_be_leaf, may_be_tree = _kinds_of_tree(flow, part)
            if may_be_leaf:
                yield part.done(*path[1:])
            if not may_be_tree:
                break
            part = part.done(ANY_ITEM)
        if may_be_tree:
            yield Unknown("leaves may lie deeper in a tree", part)


def _of_leaves(value: Value, leaves: Value | None, rest: Path) -> _Found:
    """The parts of a tree that is made of leaves: how deep they lie in it is not seen."""
    is_part = bool(rest) and rest[0].kind in (By.ITEM, By.ELEMENT)
    if leaves is not None:
        yield leaves.done(ELEMENT, *rest[is_part:])
    yield Unknown("how deep the leaves of a tree lie is not seen", value)


def _array(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    """`np.array([x, y]).reshape(2, 1)[0, 0]`: any entry may be asked for."""
    match rest:
        case [Access(By.ATTRIBUTE, str(name)), Access(By.CALL), *more] if name in _SAME_ENTRIES:
            yield Value(value.module, value.head, (*value.path[:1], *more))
        case [Access(By.ATTRIBUTE, "T" | "flat"), *more]:
            yield Value(value.module, value.head, (*value.path[:1], *more))
        case [Access(By.ATTRIBUTE, "item"), Access(By.CALL), *more] | [Access(By.ITEM | By.ELEMENT), *more]:
            # How deep its entries lie in what it is made of is not seen.
            yield flow.outside(value.module, "jax.tree.leaves", (Access(By.CALL, call), ELEMENT, *more))
        case _:
            pass


def _flat_dictionary(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    """`flatten_dict(tree)["a/b"]`, and back."""
    first, name = call.first(), f"{value.head}"
    if first is not None and name.endswith("unflatten_dict"):
        yield from _of_leaves(value, first, rest)
    elif first is not None:
        yield from _leaves(flow, first, rest)


def _used(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    """`nn.remat(Block)(dim=2)` and `nnx.List(blocks)[0]`; as it is, it is something of the library."""
    if rest:
        yield from of_first(flow, value, call, rest)


def _gradient(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    """What the loss gives besides the gradients; a gradient function itself is where a value ends."""
    function, has_value = call.at(0, "fun") or call.at(0, "f"), "value" in f"{value.head}"
    match rest:
        case [Access(By.CALL), Access(By.CALL), *_] if function is None:
            yield Value(value.module, value.head, rest)
        case [Access(By.CALL) as later, Access(By.ITEM, Key(text=place)) as step, *more] if (
            function is not None and place == (0 if has_value else 1)
        ):
            yield function.done(later, *(() if has_value else (step,)), *more)
        case [Access(By.BOUND), Access(By.CALL), *_]:
            yield Value(value.module, value.head, (value.path[0], *rest[1:]))
        case _:
            pass


def _train_state(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    """The fields of Flax's `TrainState`, as `create` gets them by keyword, and with others by `replace`."""
    match rest:
        case [Access(By.ATTRIBUTE, "replace" | "apply_gradients"), *_]:
            yield from of_record_method(flow, value._replace(path=value.path[:1]), (attribute("replace"), *rest[1:]))
        case [Access(By.ATTRIBUTE, str()), *_]:
            yield Value(value.module, "types.SimpleNamespace", value.path)
        case _:
            pass


# Forms of what makes objects that are no functions.
MAKE_OBJECTS = frozenset((_array, _flat_dictionary, _train_state, _variable))
FORMS: dict[str, Form] = {
    **dict.fromkeys(_GIVE_FIRST, of_first),
    **dict.fromkeys(("flax.nnx.split", "equinox.partition"), _split),
    "equinox.combine": _combined,
    "equinox.tree_at": _tree_at,
    **dict.fromkeys((*VARIABLES, "flax.nnx.VariableState"), _variable),
    **dict.fromkeys(_ENTRY_BY_ENTRY, _entry_by_entry),
    **dict.fromkeys(_TREES, _tree),
    **dict.fromkeys(_ARRAYS, _array),
    **dict.fromkeys(("flax.traverse_util.flatten_dict", "flax.traverse_util.unflatten_dict"), _flat_dictionary),
    **dict.fromkeys((*_GIVE_CLASS, "optax.inject_hyperparams"), _used),
    "flax.nnx.List": _used,
    **dict.fromkeys(GRADIENTS, _gradient),
    **dict.fromkeys((f"flax.training.train_state.TrainState{name}" for name in ("", ".create")), _train_state),
}
# What is made by these is called with the arguments of the function or the class that they are given.
PASS_ARGUMENTS_ON = _ENTRY_BY_ENTRY | GRADIENTS | _GIVE_CLASS | {"optax.inject_hyperparams"}
