"""Changes that a function makes to the containers of its batch: the caller's on one device, a trace's here.

What is taken out of one is taken out of the caller's as well, as in `labels = batch.pop("y")`. What is put into one is
made of one microbatch: in its place the caller's has an object that raises where anything reads it.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import jax

from mmruntime._frontend.nnx_objects import is_stateful


class BatchChanges:
    """The changes that a function makes of its batch when it is first called.

    They are made of the caller's when all is computed. Until then no array of the trace is kept, which would leak.

    Args:
        label: What messages call the function.
        given: The arguments that are cut, as the caller has them.
    """

    def __init__(self, label: str, given: Sequence[Any]) -> None:
        self._label, self._given = label, given
        # What the caller has in the place of each array of the trace.
        self._moved: dict[int, Any] = {}
        self._changes: list[Callable[[], None]] | None = None

    @contextlib.contextmanager
    def watch(self, parts: Sequence[Any]) -> Iterator[None]:
        """See what a call changes of what it is given, unless an earlier one was seen to its end."""
        if self._changes is not None:
            yield
            return
        found = jax.tree.map(lambda leaf: leaf, parts, is_leaf=is_stateful)
        yield
        self._changes = []
        old, given = (jax.tree.leaves(tree, is_leaf=is_stateful) for tree in (found, self._given))
        self._moved = dict(zip(map(id, old), given, strict=False))
        for given, before, after in zip(self._given, found, parts, strict=False):
            self._change(given, before, after, "")
        self._moved = {}

    def apply(self) -> None:
        """Change the caller's containers likewise."""
        for change in self._changes or ():
            change()

    def _change(self, given: Any, before: Any, after: Any, path: str) -> None:
        if not (type(given) is type(before) is type(after)):
            return
        if isinstance(given, dict):
            self._do(_set_entries, given, self._kept(given, before, after, path))
        elif isinstance(given, list | tuple):
            items = self._kept(dict(enumerate(given)), dict(enumerate(before)), dict(enumerate(after)), path)
            if isinstance(given, list):
                self._do(given.__setitem__, slice(None), [*items.values()])
        elif _is_container(given):
            # What is new in an object, or private to it, may be what a method has computed of the rest, and keeps.
            old, new = _attributes(before), _attributes(after)
            parts = (name for name, value in old.items() if id(value) in self._moved or _is_container(value))
            names = {*parts, *(name for name in old if not name.startswith("_"))} & new.keys()
            for name, value in self._kept(_attributes(given), old, {name: new[name] for name in names}, path).items():
                if value is not getattr(given, name):
                    self._do(object.__setattr__, given, name, value)

    def _do(self, change: Callable[..., None], *arguments: Any) -> None:
        assert self._changes is not None
        self._changes.append(functools.partial(change, *arguments))

    def _kept(self, given: dict[Any, Any], before: dict[Any, Any], after: dict[Any, Any], path: str) -> dict[Any, Any]:
        """The entries of a container after the call. Of new entries only their existence is known."""
        found = {}
        for key, value in after.items():
            place = f"{path}[{key!r}]"
            old = before.get(key, _NOTHING)
            if old is value or (type(old) is type(value) and _is_container(old)):
                self._change(given[key], old, value, place)
                found[key] = given[key]
            else:
                is_moved = id(value) in self._moved
                found[key] = self._moved[id(value)] if is_moved else ChangedInMicrobatch(self._label, place)
        return found


def _set_entries(given: dict[Any, Any], kept: dict[Any, Any]) -> None:
    for key in [key for key in given if key not in kept]:
        del given[key]
    given.update(kept)


_NOTHING = object()


def _is_container(value: Any) -> bool:
    return not jax.tree_util.all_leaves([value], is_leaf=is_stateful)


def _attributes(value: Any) -> dict[str, Any]:
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    return {name: getattr(value, name) for name in slots if hasattr(value, name)} | getattr(value, "__dict__", {})


class ChangedInMicrobatch:
    """What a function of microbatches has put into its batch."""

    def __init__(self, label: str, place: str) -> None:
        self.__dict__["_said"] = (
            f"microbatch: {label} puts another value into its batch, at {place}, and each microbatch has one of its "
            "own, so that nothing can read it after the call. Return it from the function, or change a copy of the "
            "batch, such as own = dict(batch)."
        )

    def __repr__(self) -> str:
        return "<changed in each microbatch>"

    def _raise(self, *_: Any, **__: Any) -> NoReturn:
        raise ValueError(self.__dict__["_said"])

    __getattr__ = __getitem__ = __iter__ = __len__ = __bool__ = __float__ = __int__ = _raise
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __pow__ = _raise
    __matmul__ = __rmatmul__ = __neg__ = __abs__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _raise
    __hash__ = object.__hash__
