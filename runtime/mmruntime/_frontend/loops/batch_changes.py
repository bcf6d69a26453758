"""What a function changes of the containers of its batch: on one device the caller's own, here those of a trace.

What is taken out of one is taken out of the caller's as well, as in `labels = batch.pop("y")`. What is put into one is
made of one microbatch: in its place the caller's has an object that raises where anything reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import jax


class BatchChanges:
    """The changes that a function makes of its batch when it is first called.

    Args:
        label: What messages call the function.
        given: The arguments that are cut, as the caller has them.
    """

    def __init__(self, label: str, given: Sequence[Any]) -> None:
        self._label, self._given = label, given
        self._found: tuple[Sequence[Any], Sequence[Any]] | None = None

    def watch(self, parts: Sequence[Any]) -> None:
        """Remember what is in the containers that the function is about to be given, for its first call."""
        if self._found is None:
            self._found = jax.tree.map(lambda leaf: leaf, parts), parts

    def apply(self) -> None:
        """Change the caller's containers likewise."""
        for given, before, after in zip(self._given, *(self._found or ((), ())), strict=False):
            self._change(given, before, after, "")

    def _change(self, given: Any, before: Any, after: Any, path: str) -> None:
        if not (type(given) is type(before) is type(after)):
            return
        if isinstance(given, dict):
            kept = self._kept(given, before, after, path)
            for key in [key for key in given if key not in kept]:
                del given[key]
            given.update(kept)
        elif isinstance(given, list | tuple):
            items = self._kept(dict(enumerate(given)), dict(enumerate(before)), dict(enumerate(after)), path)
            if isinstance(given, list):
                given[:] = items.values()
        elif not isinstance(given, jax.Array) and hasattr(given, "__dict__"):
            # What is new in an object may be what a method has computed of the rest, and keeps.
            old = vars(before)
            self._change(vars(given), old, {key: value for key, value in vars(after).items() if key in old}, path)

    def _kept(self, given: dict[Any, Any], before: dict[Any, Any], after: dict[Any, Any], path: str) -> dict[Any, Any]:
        """The entries of a container after the call: of those that are new only that they are."""
        found = {}
        for key, value in after.items():
            place = f"{path}[{key!r}]"
            old = before.get(key, _NOTHING)
            if old is value or (type(old) is type(value) and not jax.tree_util.all_leaves([old])):
                self._change(given[key], old, value, place)
                found[key] = given[key]
            else:
                moved = [given[other] for other, each in before.items() if each is value]
                found[key] = moved[0] if moved else ChangedInMicrobatch(self._label, place)
        return found


_NOTHING = object()


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
