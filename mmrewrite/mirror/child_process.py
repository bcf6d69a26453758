"""Run the user's program in a process of its own: a mirror of what was rewritten, an environment, one JSON document."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmrewrite.files.select import MANIFEST, Rules
from mmrewrite.mirror.build import NotBuilt, build_mirror
from mmrewrite.results import Rewrite

_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_RUNTIME = "mmruntime"
_DEVICE_COUNT = "xla_force_host_platform_device_count"


class NotRun(Exception):
    """Why it was not run, in a sentence; `details` is what the process wrote to standard error."""

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message)
        self.details = details


def check_named(**named: str) -> None:
    """Raise NotRun unless `--entry` and `--args` have the form that they need."""
    for option, text in named.items():
        if not _NAME.fullmatch(text):
            raise NotRun(f"--{option} {text}: write module:function, such as train:train_step")


def check_runtime(command: str) -> None:
    """Raise NotRun unless JAX and the runtime are there."""
    for package in ("jax", _RUNTIME):
        if importlib.util.find_spec(package) is None:
            raise NotRun(f"{command} needs {package} in this Python; run: pip install 'mmrewrite[runtime]'")


@dataclass(frozen=True)
class Mirror:
    """The rewritten program in a folder; `sources` are the files by their place in it."""

    folder: str
    sources: Mapping[str, str]

    def root(self, module: str) -> str | None:
        """The folder that a module is imported from, None where it is none of the mirror's."""
        tail = self._tail(module)
        return None if tail is None else os.path.join(self.folder, tail[0].removesuffix(tail[1]))

    def source_root(self, module: str) -> str | None:
        """The folder that the original of a module is imported from."""
        tail = self._tail(module)
        return None if tail is None else os.path.abspath(self.sources[tail[0]]).removesuffix(tail[1])

    def _tail(self, module: str) -> tuple[str, str] | None:
        path = module.replace(".", "/")
        tails = (f"{path}.py", f"{path}/__init__.py")
        fitting = [(place, tail) for place in self.sources for tail in tails if f"/{place}".endswith(f"/{tail}")]
        return min(fitting, key=lambda found: (found[0].count("/"), found[0])) if fitting else None

    def named(self, text: str) -> str:
        """A message about files of the mirror, as one about those that they were made from."""
        for place, source in self.sources.items():
            text = text.replace(os.path.join(self.folder, place), f"{source} as rewritten")
        return text


@contextlib.contextmanager
def mirrored(paths: Sequence[str], rules: Rules, results: Iterable[Rewrite]) -> Iterator[Mirror]:
    """The rewritten program in a temporary folder.

    Raises:
        NotRun: If it cannot be built.
    """
    with tempfile.TemporaryDirectory(prefix="mmrewrite-") as folder:
        mirror = os.path.realpath(folder)
        try:
            build_mirror(paths, mirror, rules, results)
        except NotBuilt as problem:
            raise NotRun(str(problem)) from None
        with open(os.path.join(mirror, MANIFEST), encoding="utf-8") as file:
            files = json.load(file)["files"]
        yield Mirror(mirror, {place: str(entry["source"]) for place, entry in files.items()})


def environment(devices: int | None) -> dict[str, str]:
    """Virtual devices, or the real ones as they are set up, and the runtime that belongs to this tool."""
    homes = []
    for package in (_RUNTIME, "mmrewrite"):
        spec = importlib.util.find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        homes.append(os.path.dirname(os.path.dirname(os.path.abspath(spec.origin))))
    path = [*dict.fromkeys(homes), *filter(None, [os.environ.get("PYTHONPATH")])]
    found = os.environ | {"PYTHONPATH": os.pathsep.join(path)}
    if devices is None:
        return found
    flags = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if _DEVICE_COUNT not in flag]
    return found | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": " ".join([*flags, f"--{_DEVICE_COUNT}={devices}"])}


def run_module(
    module: str, arguments: Sequence[str], roots: Sequence[str], given: Mapping[str, str], what: str
) -> tuple[dict[str, Any], str]:
    """The JSON document that a module of the runtime prints, and what it wrote to standard error.

    Args:
        module: Its name within the runtime.
        arguments: Its command line.
        roots: Folders that it imports from, before all others.
        given: Its environment.
        what: What it does and for what, for messages.

    Raises:
        NotRun: If it ends without a document.
    """
    command = [sys.executable, "-P", "-m", f"{_RUNTIME}.{module}", *arguments]
    command += [word for root in dict.fromkeys(roots) for word in ("--path", root)]
    finished = subprocess.run(command, env=given, capture_output=True, text=True, check=False)
    try:
        found = json.loads(finished.stdout)
    except ValueError:
        last = next((line for line in reversed(finished.stderr.splitlines()) if line.strip()), "it wrote nothing")
        raise NotRun(
            f"{what} ended with status {finished.returncode}: {last.strip()}; run again with --verbose to see all that "
            "it wrote",
            finished.stderr,
        ) from None
    assert isinstance(found, dict)
    return found, finished.stderr
