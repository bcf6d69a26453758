"""Report names of `jax.experimental.maps` without a successor in JAX, such as `FrozenDict` and `AxisName`.

    from jax.experimental.maps import FrozenDict
    is_frozen = isinstance(params, FrozenDict)
    ->  model.py:2:32: `jax.experimental.maps.FrozenDict` is gone with its module; ...

A module that imports one of them does not run on today's JAX. Unused imports are removed, as those of other names of
that module are.

To check: each use by hand; nothing is written.

Refused: every use, with its replacement.
See https://docs.jax.dev/en/latest/changelog.html for the removal.
"""

from __future__ import annotations

from typing import ClassVar

from mmmodernize.codemod import ModernizeCodemod

_FROZEN = (
    "write `flax.core.FrozenDict` where it is that of Flax (a tree for JAX, which this one was not), a `dict` where "
    "nothing hashes it, else a `collections.abc.Mapping` of your own with a `__hash__`"
)
_AXIS = "annotate with `collections.abc.Hashable`, which it was"
_OF_XMAP = "it was part of `xmap`, which has no exact replacement; write that anew with jax.shard_map or jax.vmap"
_INSTEAD = {
    "FrozenDict": _FROZEN,
    "AxisName": _AXIS,
    "ResourceAxisName": _AXIS,
    "make_xmap_callable": _OF_XMAP,
    "xmap_p": _OF_XMAP,
    "_prepare_axes": _OF_XMAP,
}


class ReportMaps(ModernizeCodemod):
    """Writes nothing."""

    extra_markers: ClassVar[tuple[bytes, ...]] = (b"experimental.maps", b"import maps", b", maps")
    names: ClassVar[tuple[str, ...]] = tuple(f"jax.experimental.maps.{name}" for name in _INSTEAD)

    def rewrite(self) -> None:
        """Report the use."""
        name = self.use.name
        self.refuse(f"`{name}` is gone with its module; {_INSTEAD[name.rpartition('.')[2]]}")
