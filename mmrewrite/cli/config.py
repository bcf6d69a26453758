"""Read `[tool.mmrewrite]` from the nearest pyproject.toml, or the same keys from mmrewrite.toml beside it."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmrewrite.files.select import matches, patterns
from mmrewrite.files.walk import OWN_FILE, PYPROJECT, read_file, shown

TOOL = "mmrewrite"
DEFAULT_WIDTH = 100


# Every codemod, in `per-file-ignores`.
ALL = "all"


class ConfigError(ValueError):
    """What is wrong with the configuration, as a sentence."""


class UnknownCodemod(ConfigError):
    """A codemod, `name`, that does not exist is selected or ignored."""

    def __init__(self, name: str, known: Collection[str]) -> None:
        super().__init__(no_codemod(name, known))
        self.name = name


def no_codemod(name: str, known: Iterable[str]) -> str:
    """What to say of a name that is no codemod's, without the list of all, which fills half a screen."""
    from mmrewrite.directives.vocabulary import closest

    close = closest(name, known)
    hint = "`mmrewrite codemods` lists them" if close is None else f"did you mean `{close}`?"
    return f"There is no codemod `{name}`; {hint}"


@dataclass(frozen=True)
class Config:
    """The settings of a project.

    Attributes:
        folder: The folder of the configuration; other paths are relative to it.
        include: The default for PATH on the command line.
        exclude: Patterns of files to ignore, as in `.gitignore`.
        out: The default for `build --out`.
        select: Codemods to run; none for all.
        ignore: Codemods not to run.
        per_file_ignores: Patterns of files, as in `.gitignore`, and the codemods that must not write into them.
        axes: Device axis of each logical axis; None for replicated.
        width: The line length of the project's formatter.
        target_jax: The oldest JAX that modernized code must run on.
        jaxtyping: Whether every task takes its layouts from jaxtyping annotations.
        suggest: What `suggest` is about where its options do not say so: `SUGGEST_KEYS`.
    """

    folder: Path
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    out: str | None = None
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    per_file_ignores: tuple[tuple[str, tuple[str, ...]], ...] = ()
    axes: tuple[tuple[str, str | None], ...] = ()
    width: int = DEFAULT_WIDTH
    target_jax: str | None = None
    jaxtyping: bool = False
    suggest: Mapping[str, Any] = field(default_factory=dict)


_LISTS = ("include", "exclude", "select", "ignore")
# A version of JAX.
VERSION = re.compile(r"\d+(\.\d+){1,3}")
KEYS = (*_LISTS, "out", "axes", "target-jax", "jaxtyping", "per-file-ignores", "suggest")
# Of the table `suggest`, with what their values are.
SUGGEST_KEYS = {"entry": str, "args": str, "run": bool, "device": str, "devices": int, "cluster": str}


def read_config(start: Path, named: Path | None = None) -> Config:
    """The configuration in the file `named`, else in the nearest one at or above `start`.

    Where a folder has both files, `mmrewrite.toml` counts, and the line length is still that of `pyproject.toml`.

    Raises:
        ConfigError: If the file cannot be read, or has an unknown key or a wrong value.
    """
    path = named or find_config(start)
    if path is None:
        return Config(start)
    content = read_toml(path)
    own = _table(content, "tool", path).get(TOOL)
    if path.name == PYPROJECT or own is not None:
        _check_name(_table(content, "tool", path), path)
        table, prefix, width = own or {}, f"[tool.{TOOL}]", _width(content, path)
    else:
        beside = path.with_name(PYPROJECT)
        table, prefix = content, "the file"
        width = _width(read_toml(beside), beside) if beside.is_file() else DEFAULT_WIDTH
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: [tool.{TOOL}] must be a table, not {table!r}")
    return _config(path, table, prefix, width)


def selected_codemods(
    select: Collection[str],
    ignore: Collection[str],
    registry: Collection[str],
    others: Collection[str],
    default: Iterable[str],
) -> frozenset[str] | None:
    """The codemods of `registry` that may run, None for the default ones.

    Args:
        select: The codemods to run; none for the default ones.
        ignore: Codemods not to run.
        registry: The codemods of this command.
        others: Codemods of the other command; the configuration is for both, and may name them too.
        default: The codemods that run when none is selected, less those that are ignored.

    Raises:
        UnknownCodemod: If one of the names is none of a codemod.
    """
    if not select and not ignore:
        return None
    _check_codemods((*select, *ignore), [*registry, *others])
    own_selected = [name for name in select if name in registry]
    own_ignored = [name for name in ignore if name in registry]
    if not own_selected and not own_ignored:
        return None
    return frozenset(own_selected or default) - frozenset(own_ignored)


def ignored_codemods(
    config: Config, paths: Iterable[str], registry: Collection[str], others: Collection[str]
) -> dict[str, frozenset[str]]:
    """The codemods that must not write into a file, for each of `paths` with `per-file-ignores`.

    Raises:
        UnknownCodemod: If the configuration names a codemod that does not exist.
        BadPattern: If one of its patterns is none.
    """
    found: dict[str, frozenset[str]] = {}
    for pattern, names in config.per_file_ignores:
        _check_codemods([name for name in names if name != ALL], [*registry, *others])
        every = frozenset(registry) if ALL in names else frozenset(names)
        spec = patterns([pattern], "per-file-ignores")
        for path in paths:
            if matches(spec, os.path.abspath(path), config.folder):
                found[shown(path)] = found.get(shown(path), frozenset()) | every
    return found


def _check_codemods(names: Iterable[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            raise UnknownCodemod(name, known)


def find_config(start: Path) -> Path | None:
    """The nearest configuration file at or above a folder."""
    files = (folder / name for folder in (start, *start.parents) for name in (OWN_FILE, PYPROJECT))
    return next((file for file in files if file.is_file()), None)


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a file of TOML.

    Raises:
        ConfigError: If it cannot be read, with its name.
    """
    # Most of what follows is needed by some runs only, so it is imported there.
    import tomllib

    try:
        # Some editors write a byte order mark.
        return tomllib.loads(read_file(str(path)).decode("utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except RecursionError:
        raise ConfigError(f"{path}: nested too deeply to be read") from None
    except ValueError as error:
        # UnicodeError and TOMLDecodeError are both of these.
        raise ConfigError(f"{path}: {error}") from None


def _table(content: dict[str, Any], key: str, path: Path) -> dict[str, Any]:
    value = content.get(key, {})
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: `{key}` must be a table, not {value!r}")
    return value


def _check_name(tool: dict[str, Any], path: Path) -> None:
    """Say so if the table of another tool looks like a misspelling of ours."""
    if TOOL in tool:
        return
    import difflib

    for name in difflib.get_close_matches(TOOL, tool, n=1, cutoff=0.8):
        raise ConfigError(f"{path}: [tool.{name}] is not read; did you mean [tool.{TOOL}]?")


def _config(path: Path, table: dict[str, Any], prefix: str, width: int) -> Config:
    _check_keys(path, prefix, table, KEYS)
    lists = {key: _strings(path, f"`{key}`", table.get(key, [])) for key in _LISTS}
    out = table.get("out")
    for name in (*lists["include"], *([out] if isinstance(out, str) else [])):
        if not name or "\0" in name:
            raise ConfigError(f"{path}: {name!r} is no name of a file or folder")
    if out is not None and not isinstance(out, str):
        raise ConfigError(f"{path}: `out` must be a folder's name, not {out!r}")
    axes = table.get("axes", {})
    if not isinstance(axes, dict):
        raise ConfigError(f"{path}: `axes` must be a table such as [tool.mmrewrite.axes], not {axes!r}")
    pairs: list[tuple[str, str | None]] = []
    for logical, device in axes.items():
        if device is not False and not (isinstance(device, str) and device):
            raise ConfigError(f"{path}: axes.{logical} must be a device axis, or false for replicated, not {device!r}")
        pairs.append((logical, device or None))
    target = table.get("target-jax")
    if target is not None and not (isinstance(target, str) and VERSION.fullmatch(target)):
        raise ConfigError(f'{path}: `target-jax` must be a version in quotes such as "0.10", not {target!r}')
    jaxtyping = table.get("jaxtyping", False)
    if not isinstance(jaxtyping, bool):
        raise ConfigError(f"{path}: `jaxtyping` must be true or false, not {jaxtyping!r}")
    ignores = table.get("per-file-ignores", {})
    if not isinstance(ignores, dict):
        raise ConfigError(
            f'{path}: `per-file-ignores` must be a table of patterns such as "tests/**" = ["NAME"], not {ignores!r}'
        )
    suggest = table.get("suggest", {})
    if not isinstance(suggest, dict):
        raise ConfigError(f"{path}: `suggest` must be a table such as [tool.mmrewrite.suggest], not {suggest!r}")
    _check_keys(path, "`suggest`", suggest, SUGGEST_KEYS)
    for key, value in suggest.items():
        kind = SUGGEST_KEYS[key]
        if type(value) is not kind or (isinstance(value, int) and kind is int and value < 1):
            kinds = {str: "a text in quotes", bool: "true or false", int: "a whole number, 1 or more"}
            raise ConfigError(f"{path}: suggest.{key} must be {kinds[kind]}, not {value!r}")
    per_file = tuple((key, _strings(path, f'per-file-ignores."{key}"', value)) for key, value in ignores.items())
    return Config(
        path.parent,
        out=out,
        axes=tuple(pairs),
        width=width,
        target_jax=target,
        jaxtyping=jaxtyping,
        per_file_ignores=per_file,
        suggest=suggest,
        **lists,
    )


def _check_keys(path: Path, what: str, table: Iterable[str], known: Collection[str]) -> None:
    for key in table:
        if key not in known:
            from mmrewrite.directives.vocabulary import nearest

            raise ConfigError(f"{path}: {what} has no key `{key}`{nearest(key, known)}")


def _strings(path: Path, what: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ConfigError(f"{path}: {what} must be a list of strings, not {value!r}")
    return tuple(value)


def separated(names: Iterable[str]) -> tuple[str, ...]:
    """Names that may stand in one text with commas between them."""
    return tuple(part.strip() for name in names for part in name.split(",") if part.strip())


def _width(content: dict[str, Any], path: Path) -> int:
    for formatter in ("ruff", "black"):
        table = _table(content, "tool", path).get(formatter)
        length = table.get("line-length") if isinstance(table, dict) else None
        if isinstance(length, int) and not isinstance(length, bool) and length > 0:
            return length
    return DEFAULT_WIDTH
