"""`modernize_oracle.py --project DIR --driver FILE`: what it runs, compares and refuses."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]

PROJECT = """\
import jax
import numpy as np
from jax.experimental.pjit import pjit
from jax.sharding import Mesh, PartitionSpec as P

mesh = Mesh(np.array(jax.devices()), ("x",))
WIDTH = 8192


def scaled(x):
    with mesh:
        return pjit(lambda x: 2 * x, in_shardings=P("x"), out_shardings=P("x"))(x)
"""

DRIVER = """\
import os

import jax.numpy as jnp
from modernize_projects.support import arrays_of, stand_in

stand_in("logger.remote")
PART = "part"
EDITS = (("scale.py", "8192", "16"),)
BY_HAND = (("scale.py", "2 *", "3 *"),)
EXPECTED = (("out['values']['scaled']['y']", "value", "by hand it is three times"),)
import logger.remote
import scale

logger.remote.log(scale.WIDTH)


def scaled():
    y = scale.scaled(jnp.arange(scale.WIDTH, dtype=float))


def failing():
    raise KeyError


out = {"width": scale.WIDTH, "large": jnp.ones(5000), "values": arrays_of([scaled, failing])}
"""


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "validation")
    import modernize_driver

    return modernize_driver


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "part").mkdir(parents=True)
    (folder / "part" / "scale.py").write_text(PROJECT)
    (tmp_path / "scale_driver.py").write_text(DRIVER)
    return folder


def options(project: Path, **changed: object) -> argparse.Namespace:
    given = {
        "project": [str(project)],
        "driver": project.parent / "scale_driver.py",
        "old": sys.executable,
        "mid": None,
        "new": None,
        "keep": None,
        "verbose": False,
    }
    return argparse.Namespace(**{**given, **changed})


def test_a_project_is_driven_before_and_after(
    driver: ModuleType, project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "kept"
    assert driver.main(options(project, keep=kept)) == 0
    said = capsys.readouterr().out
    assert "1 files changed by" in said
    assert "2 arrays, same" in said
    assert "out['values']['scaled']['y']: 1 x value, as expected: by hand it is three times" in said
    assert "WIDTH = 16" in (kept / "before" / "scale.py").read_text()
    assert "pjit(lambda x: 2" in (kept / "before" / "scale.py").read_text()
    after = (kept / "after" / "scale.py").read_text()
    assert "jax.jit(" in after
    assert "lambda x: 3 * x" in after
    assert "WIDTH = 8192" in (project / "part" / "scale.py").read_text()
    with pytest.raises(SystemExit, match="holds copies already"):
        driver.main(options(project, keep=kept))


@pytest.mark.slow
def test_codemods_that_a_driver_names_run_after_the_others(driver: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "step.py").write_text("import jax\n\nstep = jax.pmap(lambda x: jax.tree_map(abs, x))\n")
    for select, home in (((), "jax"), (("replace_pmap",), "compat")):
        work = tmp_path / home
        work.mkdir()
        files = driver.copies(tmp_path / "project", driver.Driver(path=Path("d.py"), SELECT=select), work)
        assert f"{home}.pmap(lambda x: jax.tree.map(abs, x))" in (work / "after" / "step.py").read_text()
        assert len(files) == 1 + len(select)


def test_differences_that_are_not_expected_fail(driver: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    def told(**changed: object) -> dict[str, object]:
        array = {"dtype": "float32", "shape": [1], "values": [1.0], "devices": {"0": [[0, 1]]}}
        return {"jax": "0", "out": {"dict": {"a": {**array, **changed}}}}

    given = driver.Driver(path=Path("d.py"), EXPECTED=(("out['a']", "lies", "the compiler puts it there"),))
    cases = (
        ({"values": [1.0]}, 0, "1 arrays, same"),
        ({"values": [2.0]}, 1, "out['a']: value 0 is 2 and was 1"),
        ({"devices": {"1": [[0, 1]]}}, 0, "out['a']: 1 x lies, as expected: the compiler puts it there"),
        ({"dtype": "int32"}, 1, "out['a']: dtype float32 became int32"),
    )
    for changed, status, words in cases:
        assert driver.tell(given, "python", told(), told(**changed), None) == status
        assert words in capsys.readouterr().out
    assert driver.tell(given, "python", told(), None, "KeyError: 'x'") == 1
    assert "does not run: KeyError: 'x'" in capsys.readouterr().out


def test_large_arrays_are_compared_by_samples(driver: ModuleType) -> None:
    oracle = driver.modernize_oracle
    values = np.zeros((64, 128), "float32")
    with pytest.raises(ValueError, match="at most 4096 values"):
        oracle.describe(values)
    told = oracle.describe(values, sampled=True)
    assert len(told["values"]) < 4200
    # The step is odd, so no column is passed over; and what falls between the samples is in the sum.
    for index in ((0, 0), (0, 1), (63, 127), slice(None)):
        other = values.copy()
        other[index] = 1
        assert list(oracle.differences(told, oracle.describe(other, sampled=True)))


def test_what_does_not_fit_the_project_is_refused(driver: ModuleType, project: Path) -> None:
    path = project.parent / "scale_driver.py"
    for old, new, words in (
        ('"8192", "16"', '"64", "16"', "scale.py holds no '64', which the driver replaces"),
        ('PART = "part"', 'PART = "other"', "is no folder"),
        ('PART = "part"', 'JAX = "new"', "JAX is 'new'; it can be 'old' or 'mid'"),
        ('PART = "part"', 'JAX = "mid"', "scale_driver.py needs --mid"),
    ):
        path.write_text(DRIVER.replace(old, new))
        with pytest.raises(SystemExit, match=words):
            driver.main(options(project))
    subprocess.run(["git", "init", "-q", str(project)], check=True)
    author = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    subprocess.run(["git", "-C", str(project), *author, "commit", "-q", "--allow-empty", "-m", "a"], check=True)
    path.write_text(f'COMMIT = "0000000"\n{DRIVER}')
    with pytest.raises(SystemExit, match=r"scale_driver\.py was written for 0000000"):
        driver.main(options(project))


def test_every_driver_names_its_commit(driver: ModuleType) -> None:
    folder = ROOT / "validation" / "modernize_projects"
    found = [driver.read_driver(path) for path in sorted(folder.glob("*.py")) if path.name != "support.py"]
    assert len(found) >= 3
    assert all(one.COMMIT for one in found)
