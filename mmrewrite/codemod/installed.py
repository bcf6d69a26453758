"""Whether packages with entry points for us are installed: what every run asks, with nothing that is slow to import."""

from __future__ import annotations

import os

_FILE = "entry_points.txt"
_MARK = b"[mmrewrite."


def has_plugins(folder: str) -> bool:
    """Whether a folder of the import path may hold a package with entry points for us."""
    try:
        with os.scandir(folder or os.curdir) as entries:
            names = [entry.path for entry in entries if entry.name.endswith((".dist-info", ".egg-info"))]
    except OSError:
        return False
    for name in names:
        path = os.path.join(name, _FILE)
        try:
            # Whoever opens a pipe waits for a writer, and the current folder may be one of these.
            if os.path.isfile(path):
                with open(path, "rb") as file:
                    if _MARK in file.read():
                        return True
        except OSError:
            continue
    return False
