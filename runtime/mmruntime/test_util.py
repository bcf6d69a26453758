"""The test case of MultiMesh's `test_util`, for test suites that were written for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from absl.testing import parameterized
from jax.sharding import Sharding

from mmruntime._core.switches import enable_fast_path, ignore_transforms
from mmruntime._step.multimesh_jit import multimesh_jit


class MultiMeshJaxTestCase(parameterized.TestCase):
    """Runs a function once as plain JAX and once with its tasks on their submeshes, and compares the values."""

    def assertAllClose(self, x: Any, y: Any, *, atol: float | None = None, rtol: float | None = None) -> None:
        """Fail unless two pytrees have one structure, and arrays of the same shapes with about the same values.

        Args:
            x: A pytree of arrays and numbers.
            y: Another.
            atol: The absolute tolerance; 0 if left out.
            rtol: The relative one; if left out, 1e-6 for 32-bit floats, 1e-15 for 64-bit ones, 0 for integers.
        """
        self.assertEqual(jax.tree.structure(x), jax.tree.structure(y))
        for one, other in zip(jax.tree.leaves(x), jax.tree.leaves(y), strict=True):
            kind = np.result_type(one, other)
            usual = float(10 * np.finfo(kind).eps) if np.issubdtype(kind, np.inexact) else 0
            np.testing.assert_allclose(one, other, atol=atol or 0, rtol=usual if rtol is None else rtol)

    def _test_against_reference(
        self,
        f: Callable[..., Any],
        arg_maker: Callable[[], Any],
        arg_shardings: Sequence[Any] | None = None,
        reference_shardings: Sequence[Any] | None = None,
        donate_argnums: Sequence[int] | None = None,
        enable_fast_path: bool = False,
        atol: float | None = None,
        rtol: float | None = None,
    ) -> None:
        """Compare `f(*arg_maker())` under `ignore_transforms()` and without.

        Args:
            f: The function.
            arg_maker: Makes its arguments.
            arg_shardings: Their layouts.
            reference_shardings: Their layouts in plain JAX; the same if left out.
            donate_argnums: Positions of arguments to donate.
            enable_fast_path: As `mm.enable_fast_path`.
            atol: As in `assertAllClose`.
            rtol: As in `assertAllClose`.
        """
        jax.clear_caches()
        plain = arg_shardings if reference_shardings is None else reference_shardings
        with ignore_transforms():
            if plain is None:
                args, reference = jax.jit(arg_maker)(), jax.jit(f, donate_argnums=donate_argnums)
            else:
                args = jax.jit(arg_maker, out_shardings=plain)()
                reference = jax.jit(f, in_shardings=plain, donate_argnums=donate_argnums)
            expected = jax.tree.map(np.asarray, reference(*args))
        with _fast_path(enable_fast_path):
            args = jax.jit(arg_maker)()
            if arg_shardings is not None:
                args = jax.tree.map(_put, tuple(arg_shardings), tuple(args), is_leaf=_is_leaf)
            jitted = multimesh_jit(f, in_shardings=arg_shardings, donate_argnums=donate_argnums)
            compiled = jitted.lower(*args).compile()
            found = compiled(*args)
        self.assertAllClose(expected, jax.tree.map(np.asarray, found), atol=atol, rtol=rtol)


_fast_path = enable_fast_path


def _is_leaf(node: Any) -> bool:
    return node is None or isinstance(node, Sharding)


def _put(sharding: Any, value: Any) -> Any:
    return value if sharding is None else jax.device_put(value, sharding)


# The name that it had when the package was called `legate.jax`.
LegateJaxTestCase = MultiMeshJaxTestCase
