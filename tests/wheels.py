"""Wheels of releases that the tests make up, for the tools that read such."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path


def write_wheel(folder: Path, version: str, files: Mapping[str, str]) -> Path:
    """A wheel of JAX with some files, by their paths in it."""
    wheel = folder / f"jax-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return wheel
