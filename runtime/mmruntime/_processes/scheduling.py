"""Scheduling: have Linux run a woken thread beside the one that woke it, or after it, but not in its place.

A step on CPU devices is many short programs, in threads that wake each other. Under Linux's default policy a woken
thread may preempt the one that woke it, which has more to issue. Under SCHED_BATCH, made for programs that compute, it
does not, which tells where threads outnumber cores.
"""

from __future__ import annotations

import contextlib
import os

from mmruntime import _check
from mmruntime._processes.launchers import Environment

SCHED_BATCH = "MMRUNTIME_SCHED_BATCH"


def wants_batch(given: bool | None, environment: Environment) -> bool:
    """Whether to set the policy: the argument, else the variable, else yes.

    Raises:
        ValueError: If the variable is neither 0 nor 1.
    """
    said = _check.switch("init", SCHED_BATCH, environment) if given is None else given
    return said is not False


def schedule_as_batch() -> bool:
    """Give the threads of this process Linux's policy SCHED_BATCH; those that they make later inherit it.

    Threads with another policy than the default keep theirs. Priorities (`nice`) stay, and no privilege is needed.

    Returns:
        Whether this thread has the policy now: not on other systems, nor where a sandbox forbids it.
    """
    if not hasattr(os, "SCHED_BATCH"):
        return False
    # A thread that ends meanwhile is not there any more; what a sandbox forbids is left as it is.
    with contextlib.suppress(OSError):
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(ProcessLookupError):
                if os.sched_getscheduler(int(thread)) == os.SCHED_OTHER:
                    os.sched_setscheduler(int(thread), os.SCHED_BATCH, os.sched_param(0))
        return os.sched_getscheduler(0) == os.SCHED_BATCH
    return False
