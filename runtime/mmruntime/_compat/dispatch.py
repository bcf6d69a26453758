"""Repeated calls of a step in C++."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from jax._src.interpreters import pxla

log = logging.getLogger("mmruntime")


def dispatcher(
    name: str,
    run: Callable[..., tuple[Any, Any]],
    static: Sequence[int],
    static_names: Sequence[str],
) -> Callable[..., Any] | None:
    """A function whose repeated calls run in C++, without any Python, like those of a function of `jax.jit`.

    A call is repeated if all of `jax.jit`'s cache key is equal: trees, shapes, types, weak types, shardings, static
    arguments, settings, contexts, and the transformation that is tracing.

    Args:
        name: The name in profiles.
        run: Called with the arguments of a call with a new key. Returns its result, and the `shortcut` that runs
            repeated calls from then on, or None if they shall come to `run` again.
        static: Positions of the static arguments.
        static_names: Names of the static keyword arguments.

    Returns:
        The function; None if this JAX does not have the parts for it.
    """
    try:
        # Private: what `jax.jit` itself is made of; it has no public hook for programs that were compiled ahead.
        from jax._src import tree_util  # noqa: PLC0415
        from jax._src.lib import _jax  # type: ignore[attr-defined]  # noqa: PLC0415

        dispatch: Callable[..., Any] = _jax.pjit(
            name,
            None,
            # The third value says whether to drop this key from the cache.
            lambda *args, **kwargs: (*run(*args, **kwargs), False),
            list(static),
            list(static_names),
            pxla.JitGlobalCppCacheKeys(),
            tree_util.dispatch_registry,
            pxla.cc_shard_arg,
        )
    except (ImportError, AttributeError, TypeError) as error:
        log.debug("Repeated calls of %s are recognised in Python: %s", name, error)
        return None
    return dispatch


def shortcut(
    compiled: Any, constants: Sequence[Any], read: Sequence[bool], out_tree: Any, outputs: Sequence[Any]
) -> Any:
    """The data with which a `dispatcher` runs a compiled program in C++.

    Args:
        compiled: The result of `lower(...).compile()`. Its flat arguments are the constants and then the inputs that it
            reads.
        constants: Captured arrays, the first arguments of every run.
        read: For each flat input of the call, whether it is an argument of the program.
        out_tree: The tree of the call's results.
        outputs: The results of a run.

    Returns:
        None if only Python can run it, as a program with host callbacks.
    """
    try:
        from jax._src import pjit  # noqa: PLC0415  (private: what `jax.jit` gives its own dispatch)

        executable = compiled._executable
        if executable.unsafe_call.has_host_callbacks:
            return None
        # `_get_fastpath_data` only counts the inputs. The bit vector then drops those that the program does not read.
        data = pjit._get_fastpath_data(executable, out_tree, list(read), list(outputs), (), [], None, list(constants))
        return None if data is None else data._replace(kept_var_bitvec=[*[True] * len(constants), *read])
    except (ImportError, AttributeError, TypeError) as error:
        log.debug("Repeated calls are run in Python: %s", error)
        return None
