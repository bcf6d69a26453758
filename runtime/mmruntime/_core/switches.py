"""Context switches. They are read when a step is called, and are part of every cache key.

Each is a context variable that belongs to `jax.jit`'s own cache key, so no switch needs `jax.clear_caches()`,
and an exception inside of a context restores the state before it.

The variables of other files are here, too, as all are made at once: one that the first task of a program makes, in the
midst of a trace, would have what was traced until then traced once more, and make its objects once more.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import TracebackType

from mmruntime import _check, _compat

_AUTOSHARD = _compat.user_context(True)
_FAST_PATH = _compat.user_context(True)
_IGNORED = _compat.user_context(False)
_RECOMPUTATION = _compat.user_context(True)
_REPLICATED_BELOW = _compat.user_context(0)
# Part of every jit cache key, so a function traced for one mesh is traced again for another.
MESH_IN_USE = _compat.user_context(None, of_steps=False)
# The task in use, so that a trace for one task's submesh is not reused for another's.
TASK_IN_USE = _compat.user_context(None, of_steps=False)
# Whether a trace is placed afterwards, because such a trace keeps the constraints that plain `jax.jit` would apply at
# once.
PLACED_LATER = _compat.user_context(False, of_steps=False)
# A trace that looks for the line of a change takes nothing from the caches of `jax.jit`: it is to run all lines again.
LOOKED_FOR = _compat.user_context(None, of_steps=False)
_SWITCHES = (
    "autoshard",
    "enable_fast_path",
    "ignore_transforms",
    "enable_recomputation",
    "replicate_parameters_smaller_than_num_elements",
)


def autoshard_enabled() -> bool:
    """Whether logical sharding constraints are in force."""
    return bool(_AUTOSHARD.value)


def fast_path_enabled() -> bool:
    """Whether a step of one submesh may run as one program."""
    return bool(_FAST_PATH.value)


def recomputation_enabled() -> bool:
    """Whether cheap values are computed again where they are read."""
    return bool(_RECOMPUTATION.value)


def replicated_below() -> int:
    """Inputs of a step with fewer elements than this are replicated on their submesh."""
    return int(_REPLICATED_BELOW.value)


def transforms_ignored() -> bool:
    """Whether `ignore_transforms` is in force."""
    return bool(_IGNORED.value)


def switches() -> tuple[bool | int, ...]:
    """All switches, by the names of `_SWITCHES`. `_compat.settings` has them as well."""
    return (
        autoshard_enabled(),
        fast_path_enabled(),
        transforms_ignored(),
        recomputation_enabled(),
        replicated_below(),
    )


def settings_in_words() -> str:
    """All of these and JAX's own settings that a step depends on, with their names, in a line each."""
    named = dict(zip(_SWITCHES, switches(), strict=True)) | _compat.settings_by_name()
    return "\n".join(f"{name}: {value}" for name, value in named.items())


@contextlib.contextmanager
def autoshard(autoshard: bool | None = True) -> Iterator[None]:
    """Within the context, sharding constraints are written in logical names, or not.

    They are by default: unlike MultiMesh's, logical names have no effect outside of compiled steps in any case.
    When they are not, `with_sharding_constraint` is JAX's own, over mesh axes; names that are none have no effect.

    Args:
        autoshard: Whether the names of `with_sharding_constraint` are logical ones; None changes nothing.
    """
    with _AUTOSHARD(_flag("autoshard", "autoshard", autoshard, autoshard_enabled())):
        yield


@contextlib.contextmanager
def ignore_transforms(ignore: bool | None = True) -> Iterator[None]:
    """Within the context, tasks, registrations and microbatch loops do nothing: one-device semantics.

    `with_sharding_constraint` is JAX's own then, over the axes of the mesh; names that are none have no effect.

    Args:
        ignore: False switches them on again inside an outer `ignore_transforms()`; None changes nothing.
    """
    with _IGNORED(_flag("ignore_transforms", "ignore", ignore, transforms_ignored())):
        yield


def ignore_all_transforms() -> None:
    """Put `ignore_transforms` in force for the whole process, where no context says otherwise."""
    _IGNORED.set_global(True)


@contextlib.contextmanager
def enable_fast_path(enable: bool | None = None, context_value: object = None) -> Iterator[None]:
    """Within the context, a step whose tasks all have one submesh is compiled as one program, or not.

    Args:
        enable: False cuts such a step into programs like any other, which is slower and only serves to compare;
            None changes nothing. On by default.
        context_value: No effect; MultiMesh keeps its state there, and programs never pass it.
    """
    with _FAST_PATH(_flag("enable_fast_path", "enable", enable, fast_path_enabled())):
        yield


@contextlib.contextmanager
def enable_recomputation(enable: bool | None = None, context_value: object = None) -> Iterator[None]:
    """Within the context, cheap values are computed again where they are read, or sent and kept.

    There are two kinds. Masks, position tables, casts of shared weights and random numbers, which depend on inputs
    alone, are computed on each submesh. And a backward program computes again what cheap equations, such as sums,
    products, masks and conversions, make of other values that are kept, so that less is held between the passes.
    Results do not depend on it but for rounding. Matrix products, reductions, quotients, `exp` and the like are never
    computed twice for it: that is up to `jax.checkpoint`, and to schedules with `R`.

    Args:
        enable: False computes each value once, and sends and keeps it; None changes nothing. On by default.
        context_value: No effect; MultiMesh keeps its state there, and programs never pass it.
    """
    with _RECOMPUTATION(_flag("enable_recomputation", "enable", enable, recomputation_enabled())):
        yield


@contextlib.contextmanager
def context(
    autoshard: bool | None = None,
    enable_recomputation: bool | None = None,
    enable_fast_path: bool | None = None,
    ignore_transforms: bool | None = None,
) -> Iterator[None]:
    """Several switches at once; None leaves one as it is.

    Args:
        autoshard: As in `mm.autoshard`.
        enable_recomputation: As in `mm.enable_recomputation`.
        enable_fast_path: As in `mm.enable_fast_path`.
        ignore_transforms: As in `mm.ignore_transforms`.
    """
    with (
        _AUTOSHARD(_flag("context", "autoshard", autoshard, autoshard_enabled())),
        _RECOMPUTATION(_flag("context", "enable_recomputation", enable_recomputation, recomputation_enabled())),
        _FAST_PATH(_flag("context", "enable_fast_path", enable_fast_path, fast_path_enabled())),
        _IGNORED(_flag("context", "ignore_transforms", ignore_transforms, transforms_ignored())),
    ):
        yield


class replicate_parameters_smaller_than_num_elements:
    """Keep small inputs of a step whole on every device of their submesh, whatever else says how to cut them.

    As a statement it holds for the whole process from then on; as a context,
    `with mm.replicate_parameters_smaller_than_num_elements(1024):`, the number before is restored at the end.

    Args:
        num_elements: Inputs with fewer elements are replicated; 0, the default, replicates none.

    Raises:
        ValueError: If `num_elements` is negative or not an integer.
    """

    @_compat.api_boundary
    def __init__(self, num_elements: int) -> None:
        if isinstance(num_elements, bool) or not isinstance(num_elements, int) or num_elements < 0:
            raise ValueError(
                "replicate_parameters_smaller_than_num_elements: expected a number of elements, 0 or more, got "
                f"{_check.shown(num_elements)}."
            )
        self._before = replicated_below()
        _REPLICATED_BELOW.set_global(num_elements)

    def __enter__(self) -> None:
        """Does nothing: the number is set when the object is made."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _REPLICATED_BELOW.set_global(self._before)


def _flag(what: str, name: str, value: bool | None, current: bool) -> bool:
    if value is None:
        return current
    if not isinstance(value, bool):
        raise _check.wrong(what, name, "True, False or None (no change)", value)
    return value
