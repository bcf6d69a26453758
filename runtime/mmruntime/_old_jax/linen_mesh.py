"""Has the sharding hints of Flax's linen find the mesh of `compat.mesh_context`, as they found that of `with mesh:`.

Up to Flax 0.10, `nn.with_logical_constraint`, boxes of parameters and `flax.linen.partitioning` asked
`thread_resources` whether a mesh is in context. Since then they ask for the mesh of `jax.set_mesh` alone, by
`flax.core.meta.global_mesh_defined`, and silently do nothing without it. What they do where there is one has not
changed: `jax.lax.with_sharding_constraint` with a spec, which finds either mesh.
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
_QUESTION = "global_mesh_defined"


def tell_linen(is_in_context: Callable[[], bool]) -> None:
    """Have the hints take a mesh for given where `is_in_context()` says so, now or once Flax is imported.

    Only the first call counts; elsewhere hints do what they do.
    """
    if _MODULE in sys.modules:
        _answer(sys.modules[_MODULE], is_in_context)
    elif not any(isinstance(finder, _AtImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AtImport(is_in_context))


def _answer(module: ModuleType, is_in_context: Callable[[], bool]) -> None:
    asked = getattr(module, _QUESTION, None)
    # Flax up to 0.10 has no such function, and needs none.
    if asked is None or hasattr(asked, "__wrapped__"):
        return

    @functools.wraps(asked)
    def global_mesh_defined() -> bool:
        return bool(asked()) or is_in_context()

    setattr(module, _QUESTION, global_mesh_defined)


class _AtImport(MetaPathFinder):
    """Finds the module of Flax as Python does, and changes it once it has run."""

    def __init__(self, is_in_context: Callable[[], bool]) -> None:
        self._is_in_context = is_in_context

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's spec, None for all other modules."""
        spec = PathFinder.find_spec(fullname, path, target) if fullname == _MODULE else None
        if spec is None or spec.loader is None:
            return None
        run: Callable[[ModuleType], Any] = spec.loader.exec_module

        def run_and_change(module: ModuleType) -> None:
            run(module)
            _answer(module, self._is_in_context)

        spec.loader.exec_module = run_and_change  # type: ignore[method-assign]
        return spec
