"""A process that a launcher started with others, and that JAX takes for the only one."""

from __future__ import annotations

import os
import warnings

import jax

from mmruntime._processes.launchers import NUM_PROCESSES, RESTART, Environment, find_launched


class _Said:
    """What the program said about other processes. `alone` is whether it is to be by itself."""

    alone = False


said = _Said()


def check_others(what: str, stacklevel: int) -> None:
    """See that a process that was started with others knows of them: else each would run the whole program by itself.

    Args:
        what: The calling function, for messages.
        stacklevel: Where a warning points to, as for `warnings.warn` in the calling function.

    Raises:
        RuntimeError: If `JAX_NUM_PROCESSES`, which is about JAX, names several processes, or cannot be read, and JAX
            was not told.

    Warns:
        UserWarning: If a launcher such as Slurm has started several, which may be apart on purpose, or does not say how
            many there are.
    """
    if said.alone or jax.distributed.is_initialized():
        return
    problem = _who_is_missing(os.environ)
    if problem is None or jax.process_count() > 1:
        return
    text = (
        f"{what}: {problem}, and JAX knows of this one only: each would run the whole program by itself. Call "
        "mm.init() before JAX is used, or mm.init(distributed=False) if they do not belong together."
    )
    if os.environ.get(NUM_PROCESSES, "").strip():
        raise RuntimeError(text)
    warnings.warn(text, stacklevel=stacklevel + 1)


def _who_is_missing(environment: Environment) -> str | None:
    try:
        found = find_launched(environment)
    except ValueError as problem:
        return f"this may be one of several processes ({str(problem).rstrip('.')})"
    if found is None or found.num_processes == 1:
        return None
    launcher = "mmrewrite run" if RESTART in environment else found.launcher
    if found.num_processes is None:
        return f"this may be one of several processes by {launcher}"
    return f"this is one of {found.num_processes} processes by {launcher}"
