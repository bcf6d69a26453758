"""Let the sharding hints of Flax's linen find the mesh of `compat.mesh_context`, as they found that of `with mesh:`.

Up to Flax 0.10, `nn.with_logical_constraint`, boxes of parameters and `flax.linen.partitioning` looked for a mesh in
`thread_resources`. Since then `flax.core.meta.global_mesh_defined` looks for the mesh of `jax.set_mesh` alone, and
without one the hints silently do nothing. With a mesh they still call `jax.lax.with_sharding_constraint` with a spec,
which finds either mesh. So only that one function is wrapped.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_MODULE = "flax.core.meta"
_QUERY = "global_mesh_defined"


def tell_linen(is_in_context: Callable[[], bool]) -> None:
    """Wrap Flax's function so that it also returns True while `is_in_context()` does, now or once Flax is imported.

    Only the first call has an effect.
    """
    if _MODULE in sys.modules:
        _wrap(sys.modules[_MODULE], is_in_context)
    elif not any(isinstance(finder, _AtImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AtImport(is_in_context))


def _wrap(module: ModuleType, is_in_context: Callable[[], bool]) -> None:
    defined = getattr(module, _QUERY, None)
    # Flax up to 0.10 has no such function and needs no wrapper.
    if defined is None or hasattr(defined, "__wrapped__"):
        return

    @functools.wraps(defined)
    def global_mesh_defined() -> bool:
        return bool(defined()) or is_in_context()

    setattr(module, _QUERY, global_mesh_defined)


class _AtImport(MetaPathFinder):
    """Finds Flax's module as Python does, and wraps its function once the module has run."""

    def __init__(self, is_in_context: Callable[[], bool]) -> None:
        self._is_in_context = is_in_context

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of Flax's module; None for all others, which leaves them to the next finder."""
        spec = PathFinder.find_spec(fullname, path, target) if fullname == _MODULE else None
        if spec is None or spec.loader is None:
            return None
        run: Callable[[ModuleType], Any] = spec.loader.exec_module

        def run_and_wrap(module: ModuleType) -> None:
            run(module)
            _wrap(module, self._is_in_context)

        spec.loader.exec_module = run_and_wrap  # type: ignore[method-assign]
        return spec
