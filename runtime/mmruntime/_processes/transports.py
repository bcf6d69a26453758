"""Which transport carries arrays between processes, where the user says so."""

from __future__ import annotations

import os

NAMES = ("transfer", "sockets", "collectives")
VARIABLE = "MMRUNTIME_TRANSPORT"


def forced() -> str | None:
    """The transport that the environment asks for; None if it leaves the choice to us.

    Raises:
        ValueError: If there is none of that name.
    """
    name = os.environ.get(VARIABLE, "auto")
    if name == "auto" or not name:
        return None
    if name not in NAMES:
        raise ValueError(f"{VARIABLE}={name}: expected auto, {', '.join(NAMES[:-1])} or {NAMES[-1]}.")
    return name
