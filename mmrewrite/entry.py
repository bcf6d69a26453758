"""Plan a step by tracing it: build the rewritten program in a temporary folder and plan it in a process of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmrewrite.build import NotBuilt, build_mirror
from mmrewrite.plan import Grid, Section, Table, Timeline
from mmrewrite.select import MANIFEST, Rules
from mmrewrite.values import Rewrite

_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_RUNTIME = "mmruntime"
_DEVICE_COUNT = "xla_force_host_platform_device_count"


class NotPlanned(Exception):
    """Why the step was not planned, in a sentence; `details` is what its process wrote to standard error."""

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message)
        self.details = details


@dataclass(frozen=True)
class Entry:
    """What to plan: `step` and `arguments` are `module:function`; `devices` is how many virtual devices there are."""

    step: str
    arguments: str
    devices: int
    measure: bool

    def check(self) -> None:
        """Raise NotPlanned unless both names have the form that they need, and JAX is there."""
        for option, text in (("--entry", self.step), ("--args", self.arguments)):
            if not _NAME.fullmatch(text):
                raise NotPlanned(f"{option} {text}: write module:function, such as train:train_step")
        for package in ("jax", _RUNTIME):
            if importlib.util.find_spec(package) is None:
                raise NotPlanned(f"--entry needs {package} in this Python; run: pip install 'mmrewrite[runtime]'")


def plan_entry(entry: Entry, paths: Sequence[str], rules: Rules, results: Iterable[Rewrite]) -> dict[str, Any]:
    """The document that `mmruntime._entry` prints about the rewritten program.

    Raises:
        NotPlanned: If the program cannot be built, imported or planned.
    """
    entry.check()
    with tempfile.TemporaryDirectory(prefix="mmrewrite-plan-") as folder:
        mirror = os.path.realpath(folder)
        try:
            build_mirror(paths, mirror, rules, results)
        except NotBuilt as problem:
            raise NotPlanned(str(problem)) from None
        places = _sources(mirror)
        roots = _roots(entry, mirror, places)
        found, details = _child(entry, roots)
    if "error" in found:
        message = str(found["error"])
        for place, source in places.items():
            message = message.replace(os.path.join(mirror, place), f"{source} as rewritten")
        raise NotPlanned(message, details)
    return found


def _sources(mirror: str) -> dict[str, str]:
    with open(os.path.join(mirror, MANIFEST), encoding="utf-8") as file:
        files = json.load(file)["files"]
    return {place: str(entry["source"]) for place, entry in files.items()}


def _roots(entry: Entry, mirror: str, places: Mapping[str, str]) -> list[str]:
    """Folders of the mirror that the two modules are imported from."""
    roots = []
    for option, text in (("--entry", entry.step), ("--args", entry.arguments)):
        module = text.partition(":")[0]
        path = module.replace(".", "/")
        tails = (f"{path}.py", f"{path}/__init__.py")
        fitting = [(place, tail) for place in places for tail in tails if f"/{place}".endswith(f"/{tail}")]
        if fitting:
            place, tail = min(fitting, key=lambda found: (found[0].count("/"), found[0]))
            roots.append(os.path.join(mirror, place.removesuffix(tail)))
        elif option == "--entry":
            raise NotPlanned(
                f"{option} {text}: none of the files given is the module `{module}`; give its file or folder as PATH"
            )
    return list(dict.fromkeys(roots))


def _child(entry: Entry, roots: Sequence[str]) -> tuple[dict[str, Any], str]:
    command = [sys.executable, "-P", "-m", f"{_RUNTIME}._entry", entry.step, entry.arguments]
    command += [word for root in roots for word in ("--path", root)]
    command += ["--measure"] if entry.measure else []
    finished = subprocess.run(command, env=_environment(entry.devices), capture_output=True, text=True, check=False)
    try:
        found = json.loads(finished.stdout)
    except ValueError:
        last = next((line for line in reversed(finished.stderr.splitlines()) if line.strip()), "it wrote nothing")
        raise NotPlanned(
            f"--entry {entry.step}: the process that plans it ended with status {finished.returncode}: {last.strip()}; "
            "run again with --verbose to see all that it wrote",
            finished.stderr,
        ) from None
    assert isinstance(found, dict)
    return found, finished.stderr


def _environment(devices: int) -> dict[str, str]:
    """Virtual devices of this machine, and the runtime that belongs to this tool."""
    flags = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if _DEVICE_COUNT not in flag]
    spec = importlib.util.find_spec(_RUNTIME)
    assert spec is not None
    assert spec.origin is not None
    home = os.path.dirname(os.path.dirname(os.path.abspath(spec.origin)))
    path = [home, *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join(path),
        "XLA_FLAGS": " ".join([*flags, f"--{_DEVICE_COUNT}={devices}"]),
    }


def section_of(entry: Entry, found: Mapping[str, Any]) -> Section:
    """What there is to show about a traced step."""
    tables = [_table(table) for table in found["tables"] if table["rows"]]
    tables += _measured(found)
    timelines = tuple(_timeline(loop) for loop in found["loops"])
    title = f"{entry.step}, traced for {entry.arguments} on {entry.devices} virtual devices"
    return Section(title, tuple(found["headlines"]), _grid(found), tuple(tables), timelines)


def _table(table: Mapping[str, Any]) -> Table:
    return Table(table["title"], tuple(table["head"]), tuple(tuple(row) for row in table["rows"]))


def _grid(found: Mapping[str, Any]) -> Grid:
    devices = tuple(found["mesh"]["devices"])
    owners = tuple(tuple(row["number"] for row in found["submeshes"] if device in row["devices"]) for device in devices)
    return Grid("Mesh: device ids", tuple(found["mesh"]["axes"].items()), devices, owners, "submesh")


def _timeline(loop: Mapping[str, Any]) -> Timeline:
    from mmruntime import schedules

    schedule = schedules.Schedule.from_csv(loop["order"], loop["schedule"])
    rows = list(loop["submeshes"])
    notes = () if rows == sorted(rows) else (f"its rows are submeshes {', '.join(map(str, rows))}, in that order",)
    costs = loop["costs"]
    if costs is None:
        return Timeline(f"schedule {schedule.name}", "unit", notes, schedules.simulate(schedule))
    notes = (*notes, "in milliseconds; a forward and a backward that run as one program count as forward")
    milliseconds = {kind: [1e3 * seconds for seconds in stages] for kind, stages in costs.items()}
    simulation = schedules.simulate(
        schedule,
        forward=milliseconds["forward"],
        backward_input=milliseconds["backward_input"],
        backward_weight=milliseconds["backward_weight"],
    )
    return Timeline(f"schedule {schedule.name}", "measured", notes, simulation)


def _measured(found: Mapping[str, Any]) -> list[Table]:
    measured = found["measured"]
    if measured is None:
        return []
    tables = []
    for loop in found["loops"]:
        costs = loop["costs"]
        kinds = ("forward", "backward_input", "backward_weight")
        rows = [
            (str(stage), str(where), *(_milliseconds(costs[kind][stage]) for kind in kinds))
            for stage, where in enumerate(loop["stages"])
        ]
        head = ("stage", "submesh", "forward ms", "backward ms, or its input half", "weight half ms")
        tables.append(Table("Measured, each program alone, one microbatch", head, tuple(rows)))
    once = [(str(row["submesh"]), _milliseconds(row["seconds"])) for row in measured["once"]]
    tables.append(Table("Measured outside of microbatches, per step", ("submesh", "ms"), tuple(once)))
    moved = [(str(row["source"]), str(row["target"]), _milliseconds(row["seconds"])) for row in measured["transfers"]]
    tables.append(Table("Measured, the slowest transfer", ("from", "to", "ms"), tuple(moved)))
    return [table for table in tables if table.rows]


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g}"
