"""A process that a launcher started with others, and that JAX takes for the only one."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass

import jax

from mmruntime import _compat
from mmruntime._processes.launchers import NUM_PROCESSES, RESTART, Environment, find_launched
from mmruntime._processes.scheduling import wants_batch
from mmruntime._processes.start import ProcessArguments, said, start_processes


def check_others(what: str, stacklevel: int) -> None:
    """See that a process that was started with others knows of them: else each would run the whole program by itself.

    Where `JAX_NUM_PROCESSES`, which is about JAX, names several processes, and JAX is not used yet, they are joined, as
    by `mm.init()`: so a rewritten module runs as it is.

    Args:
        what: The calling function, for messages.
        stacklevel: Where a warning points to, as for `warnings.warn` in the calling function.

    Raises:
        RuntimeError: If JAX is used already, or `JAX_NUM_PROCESSES` cannot be read.
        ValueError: If the variables do not say enough to join the others.

    Warns:
        UserWarning: If a launcher such as Slurm has started several, which may be apart on purpose, or does not say how
            many there are.
    """
    if said.alone or jax.distributed.is_initialized():
        return
    problem = _who_is_missing(os.environ)
    if problem is None:
        return
    is_about_jax = bool(os.environ.get(NUM_PROCESSES, "").strip())
    if is_about_jax and not problem.is_unclear and not _compat.backends_started():
        start_processes(ProcessArguments(), os.environ, batch=wants_batch(None, os.environ))
        return
    if jax.process_count() > 1:
        return
    text = (
        f"{what}: {problem.text}, and JAX knows of this one only: each would run the whole program by itself. Call "
        "mm.init() before JAX is used, or mm.init(distributed=False) if they do not belong together."
    )
    if is_about_jax:
        raise RuntimeError(text)
    warnings.warn(text, stacklevel=stacklevel + 1)


@dataclass(frozen=True)
class _Missing:
    """The others that JAX does not know of, in words; `is_unclear` is whether what the launcher set cannot be read."""

    text: str
    is_unclear: bool = False


def _who_is_missing(environment: Environment) -> _Missing | None:
    try:
        found = find_launched(environment)
    except ValueError as problem:
        return _Missing(f"this may be one of several processes ({str(problem).rstrip('.')})", is_unclear=True)
    if found is None or found.num_processes == 1:
        return None
    launcher = "mmrewrite run" if RESTART in environment else found.launcher
    if found.num_processes is None:
        return _Missing(f"this may be one of several processes by {launcher}", is_unclear=True)
    return _Missing(f"this is one of {found.num_processes} processes by {launcher}")
