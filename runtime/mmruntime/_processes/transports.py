"""Which transport carries arrays between processes, where the user says so."""

from __future__ import annotations

import os

AUTO = "auto"
NAMES = ("transfer", "sockets", "collectives")
VARIABLE = "MMRUNTIME_TRANSPORT"


def check_transport(what: str, name: str) -> str:
    """The name of a transport, or "auto".

    Args:
        what: Where it was given, for the message.
        name: What was given.

    Raises:
        ValueError: If there is none of that name.
    """
    if name not in (AUTO, *NAMES):
        raise ValueError(f"{what} must be {AUTO}, {', '.join(NAMES[:-1])} or {NAMES[-1]}, got {name!r}.")
    return name


def forced() -> str | None:
    """The transport that the environment asks for; None if it leaves the choice to us.

    Raises:
        ValueError: If there is none of that name.
    """
    name = check_transport(VARIABLE, os.environ.get(VARIABLE) or AUTO)
    return None if name == AUTO else name
