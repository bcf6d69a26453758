"""Run the rewritten program in a process of its own, which prints one JSON document.

A process of its own keeps JAX out of the tool, lets each program have its own number of virtual devices (XLA reads it
once, when it starts), and survives whatever the user's code does at import.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mmrewrite.files.select import RewrittenProgram
from mmrewrite.files.walk import MANIFEST, read_file
from mmrewrite.launch.environment import JOB
from mmrewrite.launch.watchman import temporary_folder
from mmrewrite.mirror.build import NotBuilt, build_mirror
from mmrewrite.mirror.limits import USUAL, ProgramLimits, run_within
from mmrewrite.mirror.lines_before import LinesBefore
from mmrewrite.results import Rewrite
from mmrewrite.tracking import Tell, untold

_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_RUNTIME = "mmruntime"
_DEVICE_COUNT = "xla_force_host_platform_device_count"
# With it a program would be compared with itself where devices are missing.
ONE_DEVICE_FALLBACK = "MMRUNTIME_ONE_DEVICE_FALLBACK"


class NotRun(Exception):
    """Why the program was not run, as a sentence; `details` is the standard error of its process."""

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message)
        self.details = details


def check_named(**named: str) -> None:
    """Check that options such as `--entry` have the form `module:function`.

    Raises:
        NotRun: If one has not.
    """
    for option, text in named.items():
        if not _NAME.fullmatch(text):
            raise NotRun(f"--{option} {text}: write module:function, such as train:train_step")


def check_runtime(command: str) -> None:
    """Check that JAX and the runtime are installed, without importing them.

    Raises:
        NotRun: If one is missing.
    """
    for package in ("jax", _RUNTIME):
        if importlib.util.find_spec(package) is None:
            raise NotRun(f"{command} needs {package} in this Python; run: pip install 'mmrewrite[runtime]'")


@dataclass(frozen=True)
class Mirror:
    """The rewritten program in a folder.

    Attributes:
        folder: The folder.
        sources: The original file of each path in it.
        hashes: The SHA-256 of each of these.
        rewrites: What was made of those that differ from their originals.
    """

    folder: str
    sources: Mapping[str, str]
    hashes: Mapping[str, str]
    rewrites: Mapping[str, Rewrite] = field(default_factory=dict)

    def root(self, module: str) -> str | None:
        """The folder of the mirror from which a module is imported; None if the mirror lacks it."""
        tail = self._tail(module)
        return None if tail is None else os.path.join(self.folder, tail[0].removesuffix(tail[1]))

    def source_root(self, module: str) -> str | None:
        """The folder from which the original of a module is imported; None if the mirror lacks it."""
        tail = self._tail(module)
        return None if tail is None else os.path.abspath(self.sources[tail[0]]).removesuffix(tail[1])

    def _tail(self, module: str) -> tuple[str, str] | None:
        path = module.replace(".", "/")
        tails = (f"{path}.py", f"{path}/__init__.py")
        fitting = [(place, tail) for place in self.sources for tail in tails if f"/{place}".endswith(f"/{tail}")]
        return min(fitting, key=lambda found: (found[0].count("/"), found[0])) if fitting else None

    def named(self, text: str) -> str:
        """`text` with paths of the mirror replaced by those of the originals."""
        for place, source in self.sources.items():
            text = text.replace(os.path.join(self.folder, place), f"{source} as rewritten")
        return text

    def told(self, text: str) -> str:
        """A message with lines of the originals in the place of lines of the mirror; for a line that a hint made, the
        hint's.
        """
        for place, source in self.sources.items():
            if (path := os.path.join(self.folder, place)) in text:
                before = LinesBefore(self.rewrites[source]) if source in self.rewrites else None

                def original(found: re.Match[str], source: str = source, before: LinesBefore | None = before) -> str:
                    line, between = int(found["line"]), found["between"]
                    lines = (line,) if before is None else before.of(line)
                    was = "" if before is None else f" (line {line} as rewritten)"
                    return f"{source}{between}{lines[0]}{was}" if lines else found[0]

                text = re.sub(rf'{re.escape(path)}(?P<between>:|", line )(?P<line>\d+)', original, text)
        return self.named(text)


@contextlib.contextmanager
def mirrored(program: RewrittenProgram) -> Iterator[Mirror]:
    """The rewritten program in a folder that is deleted afterwards.

    Raises:
        NotRun: If the mirror cannot be built.
    """
    with temporary_folder("mmrewrite-") as folder:
        # macOS links its temporary folder; `named` has to find the path in messages of programs that resolve it.
        mirror = os.path.realpath(folder)
        try:
            built = build_mirror(program, mirror, headed=False)
        except NotBuilt as problem:
            raise NotRun(str(problem)) from None
        if missing := (*built.unread, *built.unwritten):
            path, reason = missing[0]
            raise NotRun(f"{path}: {reason}")
        files = json.loads(read_file(os.path.join(mirror, MANIFEST)))["files"]
        sources = {place: str(entry["source"]) for place, entry in files.items()}
        hashes = {str(entry["source"]): str(entry["source_sha256"]) for entry in files.values()}
        yield Mirror(mirror, sources, hashes, {result.path: result for result in program.results if result.changed})


def environment(devices: int | None) -> dict[str, str]:
    """Environment variables for the process: this tool's own runtime, virtual devices, and no other processes.

    Args:
        devices: Number of virtual CPU devices; None for the real ones, as the user has set them up.
    """
    homes = []
    for package in (_RUNTIME, "mmrewrite"):
        spec = importlib.util.find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        homes.append(os.path.dirname(os.path.dirname(os.path.abspath(spec.origin))))
    path = [*dict.fromkeys(homes), *filter(None, [os.environ.get("PYTHONPATH")])]
    # A program that joins the processes of a job would wait for the others.
    own = {name: value for name, value in os.environ.items() if name not in JOB}
    variables = own | {"PYTHONPATH": os.pathsep.join(path), ONE_DEVICE_FALLBACK: "0"}
    if devices is None:
        return variables
    flags = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if _DEVICE_COUNT not in flag]
    return variables | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": " ".join([*flags, f"--{_DEVICE_COUNT}={devices}"])}


def run_module(
    module: str,
    arguments: Sequence[str],
    roots: Sequence[str],
    variables: Mapping[str, str],
    what: str,
    limits: ProgramLimits = USUAL,
    tell: Tell = untold,
) -> tuple[dict[str, Any], str]:
    """Run a module of the runtime; return the JSON document that it prints, and its standard error.

    Args:
        module: Its name within the runtime.
        arguments: Its command line.
        roots: Folders from which it imports before all others.
        variables: Its environment variables.
        what: A name for the process, for messages.
        limits: Bounds of its time, memory and output.
        tell: Takes what it says that it is doing, for modules of `parser_for`.

    Raises:
        NotRun: If it ends without a document, or goes beyond its limits.
    """
    # -P keeps the current folder off the import path: the user's `train.py` there must not hide the mirror's.
    command = [sys.executable, "-P", "-m", f"{_RUNTIME}.{module}", *arguments]
    command += [word for root in dict.fromkeys(roots) for word in ("--path", root)]
    finished = run_within(command, variables, limits, tell)
    if finished.ended is not None:
        raise NotRun(
            f"{what} was ended: {finished.ended}; --time-limit, --memory-limit and --output-limit set the bounds",
            finished.stderr,
        )
    try:
        document = json.loads(finished.stdout)
    except ValueError:
        last = next((line for line in reversed(finished.stderr.splitlines()) if line.strip()), "it wrote nothing")
        raise NotRun(
            f"{what} ended with status {finished.status}: {last.strip()}; run again with --verbose to see all that "
            "it wrote",
            finished.stderr,
        ) from None
    assert isinstance(document, dict)
    return document, finished.stderr
