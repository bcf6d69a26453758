"""Modernized programs make what the same programs made, before, on an old JAX.

`old.json` in a fixture is what `before.py` made there; `validation/modernize_oracle.py` wrote it.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

import jax
import pytest
from scripts import load_script

from mmruntime import compat

pytestmark = pytest.mark.family

ROOT = Path(__file__).resolve().parents[2]
CASES = sorted(path.parent for path in (ROOT / "fixtures" / "modernize").glob("*/*/old.json"))


ORACLE = load_script("validation/modernize_oracle.py")


def main_of(case: Path, folder: Path) -> Path:
    """The program to run: what was written, and what was not rewritten as it was; put together in `folder`."""
    if (case / "after.py").exists():
        return case / "after.py"
    for part in ("before", "after"):
        if (case / part).is_dir():
            shutil.copytree(case / part, folder, dirs_exist_ok=True)
    return folder / "main.py"


@contextlib.contextmanager
def importable(folder: Path):
    """Modules beside the program can be imported, and are forgotten afterwards."""
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            place = getattr(sys.modules[name], "__file__", None) or ""
            if place.startswith(str(folder)):
                del sys.modules[name]


def test_there_are_recorded_programs() -> None:
    assert len(CASES) >= 25


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.parent.name}/{case.name}")
def test_a_modernized_program_makes_what_it_made(case: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    main = main_of(case, tmp_path)
    recorded = json.loads((case / "old.json").read_text(encoding="utf-8"))
    with (
        importable(main.parent),
        jax.numpy_rank_promotion("allow"),
        jax.numpy_dtype_promotion("standard"),
        warnings.catch_warnings(),
    ):
        names: dict[str, Any] = {"__name__": "program", "__file__": str(main)}
        exec(compile(main.read_text(encoding="utf-8"), str(main), "exec", dont_inherit=True), names)
        found = ORACLE.describe(names["out"])
    # A mesh that the program has put in place for good.
    jax.set_mesh(None)
    with compat.mesh_context(jax.make_mesh((1,), ("x",), (jax.sharding.AxisType.Auto,))):
        """Leaving a context ends what `assign_mesh` put in place."""
    assert list(ORACLE.differences(recorded["out"], found)) == []


def test_the_comparison_can_fail() -> None:
    mesh = jax.sharding.Mesh(jax.devices(), ("x",))
    split, whole = (jax.NamedSharding(mesh, spec) for spec in (jax.P("x"), jax.P()))
    x = jax.numpy.arange(8.0)
    told = ORACLE.describe({"x": jax.device_put(x, split), "n": (1, None)})
    assert list(ORACLE.differences(told, told)) == []
    for other, words in (
        ({"x": jax.device_put(x, whole), "n": (1, None)}, "lies on devices"),
        ({"x": jax.device_put(8 * x, split), "n": (1, None)}, "value 1 is 8 and was 1"),
        ({"x": jax.device_put(x.astype("int32"), split), "n": (1, None)}, "dtype float32 became int32"),
        ({"x": jax.device_put(x, split), "n": [1, None]}, "tuple became list"),
        ({"x": jax.device_put(x, split), "n": (2, None)}, "1 became 2"),
        ({"y": jax.device_put(x, split), "n": (1, None)}, "a dict of other entries"),
    ):
        assert words in "\n".join(ORACLE.differences(told, ORACLE.describe(other)))
