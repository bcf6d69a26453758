"""The convention of `flax.nnx.jit`: objects among the arguments, which change as the step changes them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from mmruntime._calling.convention import STATIC, Convention, Static
from mmruntime._frontend.nnx_objects import is_stateful


@dataclass(frozen=True)
class _Slot:
    """The structure of a value with objects as leaves, and the positions of these leaves."""

    tree: Any
    is_object: tuple[bool, ...]

    @property
    def is_lone(self) -> bool:
        """Whether the value is an object, rather than a container of some."""
        return jax.tree_util.treedef_is_leaf(self.tree)


@dataclass(frozen=True)
class _Apart:
    """Values with their objects taken out.

    Attributes:
        objects: The objects of all values, in order.
        rests: For each value its leaves besides objects; the value itself if it has no objects.
        slots: For each value its structure, None if it has no objects.
    """

    objects: tuple[Any, ...]
    rests: tuple[Any, ...]
    slots: tuple[_Slot | None, ...]


class NnxJit(Convention):
    """A step that takes modules, optimizers, metrics and `nnx.Rngs`, and changes them in place.

    An object among the arguments becomes the `nnx.State` of its arrays. Objects that share variables share them in the
    step too, and what the step adds to an object is there afterwards.
    """

    def __init__(self, fun: Callable[..., Any]) -> None:
        super().__init__(fun)
        # Under which flax keeps count of the references of this step.
        self._tag = object()

        @functools.wraps(fun)
        def arrays(*args: Any, **kwargs: Any) -> Any:
            from flax import nnx  # noqa: PLC0415  (only programs that use it come here)

            graph, slots, names = kwargs.pop(STATIC).value
            values = [*args, *(kwargs[name] for name in names)]
            rests, states = _without_states(values, slots)
            with nnx.merge_context(self._tag, True) as context:
                objects = context.merge(graph, nnx.State(_present(states)))
            values = _together(_Apart(objects, rests, slots))
            count = len(args)
            result = fun(*values[:count], **dict(zip(names, values[count:], strict=True)))
            # A tuple stays one, so that state among its items is recognised.
            returned = _taken_apart(result if type(result) is tuple else (result,))
            with nnx.split_context(self._tag) as context:
                graph, state = context.split((objects, returned.objects))
            changed = _with_states(rests, slots, state.get(0, {}))
            kept = [value for value, slot in zip(changed, slots, strict=True) if slot is not None]
            return *kept, *returned.rests, state.get(1, {}), Static((type(result) is tuple, graph, returned.slots))

        self.arrays = arrays

    def call(self, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`run` with the arrays of the objects, which then change; the result is as the step gave it."""
        from flax import nnx  # noqa: PLC0415

        with nnx.update_context(self._tag):
            args, kwargs = self._lowered(args, kwargs)
            slots = [slot for slot in kwargs[STATIC].value[1] if slot is not None]
            *items, state, static = run(*args, **kwargs)
            is_tuple, graph, out_slots = static.value
            _, states = _without_states(items[: len(slots)], slots)
            whole = {0: _present(states), 1: state}
            with nnx.merge_context(self._tag, False) as context:
                _, objects = context.merge(graph, nnx.State({key: part for key, part in whole.items() if part}))
        results = _together(_Apart(objects, tuple(items[len(slots) :]), out_slots))
        return tuple(results) if is_tuple else results[0]

    def inspect(self, report: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`report` with the arrays of the objects."""
        from flax import nnx  # noqa: PLC0415

        with nnx.update_context(self._tag):
            args, kwargs = self._lowered(args, kwargs)
            return report(*args, **kwargs)

    def _lowered(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        from flax import nnx  # noqa: PLC0415

        apart = _taken_apart((*args, *kwargs.values()))
        with nnx.split_context(self._tag) as context:
            graph, state = context.split(apart.objects)
        values = _with_states(apart.rests, apart.slots, state)
        by_name = dict(zip(kwargs, values[len(args) :], strict=True))
        return tuple(values[: len(args)]), {**by_name, STATIC: Static((graph, apart.slots, tuple(kwargs)))}


def _taken_apart(values: Sequence[Any]) -> _Apart:
    objects: list[Any] = []
    rests: list[Any] = []
    slots: list[_Slot | None] = []
    for value in values:
        leaves, tree = jax.tree.flatten(value, is_leaf=is_stateful)
        chosen = tuple(map(is_stateful, leaves))
        objects += [leaf for leaf, yes in zip(leaves, chosen, strict=True) if yes]
        rest = tuple(leaf for leaf, yes in zip(leaves, chosen, strict=True) if not yes)
        rests.append(rest if any(chosen) else value)
        slots.append(_Slot(tree, chosen) if any(chosen) else None)
    return _Apart(tuple(objects), tuple(rests), tuple(slots))


def _together(apart: _Apart) -> list[Any]:
    """The values that were taken apart, with these objects."""
    objects = iter(apart.objects)

    def whole(rest: Any, slot: _Slot | None) -> Any:
        if slot is None:
            return rest
        others = iter(rest)
        return jax.tree.unflatten(slot.tree, [next(objects) if yes else next(others) for yes in slot.is_object])

    return [whole(rest, slot) for rest, slot in zip(apart.rests, apart.slots, strict=True)]


def _with_states(rests: Sequence[Any], slots: Sequence[_Slot | None], state: Mapping[int, Any]) -> list[Any]:
    """The values with the states of their objects for these: the state alone in the place of an object."""
    numbers = iter(range(sum(sum(slot.is_object) for slot in slots if slot is not None)))

    def lowered(rest: Any, slot: _Slot | None) -> Any:
        if slot is None:
            return rest
        states = [state.get(next(numbers), {}) for yes in slot.is_object if yes]
        return states[0] if slot.is_lone else (states, rest)

    return [lowered(rest, slot) for rest, slot in zip(rests, slots, strict=True)]


def _without_states(values: Sequence[Any], slots: Sequence[_Slot | None]) -> tuple[tuple[Any, ...], list[Any]]:
    """The reverse: what is left of the values, and the states of their objects."""
    rests: list[Any] = []
    states: list[Any] = []
    for value, slot in zip(values, slots, strict=True):
        if slot is None:
            rests.append(value)
        else:
            own, rest = ([value], ()) if slot.is_lone else value
            rests.append(rest)
            states += own
    return tuple(rests), states


def _present(states: Sequence[Any]) -> dict[int, Any]:
    """The states by number, without those of objects that have no variables of their own."""
    return {number: state for number, state in enumerate(states) if jax.tree.leaves(state)}
