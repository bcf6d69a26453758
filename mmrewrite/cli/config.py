"""Read `[tool.mmrewrite]` from the nearest pyproject.toml."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmrewrite.directives.vocabulary import nearest

FILE = "pyproject.toml"
DEFAULT_WIDTH = 100


class ConfigError(ValueError):
    """What is wrong with the configuration, as a sentence."""


@dataclass(frozen=True)
class Config:
    """The settings of a project.

    Attributes:
        folder: The folder of the pyproject.toml; other paths are relative to it.
        include: The default for PATH on the command line.
        exclude: Patterns of files to ignore, as in `.gitignore`.
        out: The default for `build --out`.
        select: Codemods to run; none for all.
        ignore: Codemods not to run.
        axes: Device axis of each logical axis; None for replicated.
        width: The line length of the project's formatter.
        target_jax: The oldest JAX that modernized code must run on.
        jaxtyping: Whether every task takes its layouts from jaxtyping annotations.
    """

    folder: Path
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    out: str | None = None
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    axes: tuple[tuple[str, str | None], ...] = ()
    width: int = DEFAULT_WIDTH
    target_jax: str | None = None
    jaxtyping: bool = False


_LISTS = ("include", "exclude", "select", "ignore")
KEYS = (*_LISTS, "out", "axes", "target-jax", "jaxtyping")


def read_config(start: Path, named: Path | None = None) -> Config:
    """The configuration in the file `named`, else in the nearest pyproject.toml at or above `start`.

    Raises:
        ConfigError: If the file cannot be read, or has an unknown key or a wrong value.
    """
    path = named or next((folder / FILE for folder in (start, *start.parents) if (folder / FILE).is_file()), None)
    if path is None:
        return Config(start)
    try:
        tool = tomllib.loads(path.read_text(encoding="utf-8")).get("tool", {})
    except (OSError, UnicodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None
    return _config(path, tool.get("mmrewrite", {}), _width(tool))


def _config(path: Path, table: dict[str, Any], width: int) -> Config:
    for key in table:
        if key not in KEYS:
            raise ConfigError(f"{path}: [tool.mmrewrite] has no key `{key}`{nearest(key, KEYS)}")
    lists = {}
    for key in _LISTS:
        value = table.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ConfigError(f"{path}: `{key}` must be a list of strings, not {value!r}")
        lists[key] = tuple(value)
    out = table.get("out")
    if out is not None and not isinstance(out, str):
        raise ConfigError(f"{path}: `out` must be a folder's name, not {out!r}")
    axes = table.get("axes", {})
    if not isinstance(axes, dict):
        raise ConfigError(f"{path}: `axes` must be a table such as [tool.mmrewrite.axes], not {axes!r}")
    pairs: list[tuple[str, str | None]] = []
    for logical, device in axes.items():
        if device is not False and not isinstance(device, str):
            raise ConfigError(f"{path}: axes.{logical} must be a device axis, or false for replicated, not {device!r}")
        pairs.append((logical, device or None))
    target = table.get("target-jax")
    if target is not None and not isinstance(target, str):
        raise ConfigError(f'{path}: `target-jax` must be a version in quotes such as "0.10", not {target!r}')
    jaxtyping = table.get("jaxtyping", False)
    if not isinstance(jaxtyping, bool):
        raise ConfigError(f"{path}: `jaxtyping` must be true or false, not {jaxtyping!r}")
    return Config(path.parent, out=out, axes=tuple(pairs), width=width, target_jax=target, jaxtyping=jaxtyping, **lists)


def _width(tool: dict[str, Any]) -> int:
    for formatter in ("ruff", "black"):
        length = tool.get(formatter, {}).get("line-length")
        if isinstance(length, int):
            return length
    return DEFAULT_WIDTH
