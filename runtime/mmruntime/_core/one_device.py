"""What a program does whose mesh has more devices than there are: an error, or on request the one-device program."""

from __future__ import annotations

import logging
import os

import jax

from mmruntime import _check
from mmruntime._core.switches import ignore_all_transforms

VARIABLE = "MMRUNTIME_ONE_DEVICE_FALLBACK"
ADVICE = f"to run it as the one-device program, set {VARIABLE}=1 or write mm.init(one_device_fallback=True)"

log = logging.getLogger("mmruntime")


class _Fallback:
    """What `mm.init` has said, and whether the program was told that it runs on one device."""

    allowed: bool | None = None
    is_told = False


def allow_one_device(allowed: bool | None) -> None:
    """Let a program whose mesh is too large run on one device, or not; the variable goes before.

    Raises:
        ValueError: If the variable is neither 0 nor 1.
    """
    _check.switch("init", VARIABLE, os.environ)
    _Fallback.allowed = allowed


def falls_back(axes: str, need: int, have: int) -> bool:
    """Whether a mesh of too many devices has one; the program is the one-device program from then on, and says so.

    Args:
        axes: The axes of the mesh, in words.
        need: How many devices they need.
        have: How many there are.
    """
    said = _check.switch("init", VARIABLE, os.environ)
    # Each of several processes would run a program of its own.
    if not (_Fallback.allowed if said is None else said) or jax.process_count() > 1:
        return False
    ignore_all_transforms()
    if not _Fallback.is_told:
        _Fallback.is_told = True
        asked = "mm.init(one_device_fallback=True)" if said is None else f"{VARIABLE}=1"
        log.warning(
            "mmruntime: %s needs %d devices, and has %d: this runs as the one-device program, as %s asks.",
            axes,
            need,
            have,
            asked,
        )
    return True
