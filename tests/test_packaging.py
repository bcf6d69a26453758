"""The wheel that a clean checkout gives: what is in it, and that it installs and starts."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

import mmrewrite

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {"mmcodemods", "mmrewrite", "mmruntime"}


def run(*command: object, cwd: Path | None = None) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    finished = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


def build(kind: str, source: Path, out: Path) -> Path:
    run(sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", out, cwd=source)
    (built,) = out.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return built


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the files that git knows or would add."""
    pytest.importorskip("hatchling", reason="building a wheel needs hatchling")
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    folder = tmp_path_factory.mktemp("checkout")
    for name in run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT).split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", checkout, tmp_path_factory.mktemp("wheel"))


def names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return sorted(archive.namelist())


def test_wheel_holds_three_packages_and_nothing_else(wheel: Path) -> None:
    top = {name.split("/")[0] for name in names(wheel)}
    assert top == PACKAGES | {f"mmrewrite-{mmrewrite.__version__}.dist-info"}


def test_wheel_holds_every_module(wheel: Path, checkout: Path) -> None:
    roots = {"mmrewrite": ".", "mmcodemods": "codemods", "mmruntime": "runtime"}
    expected = {
        path.relative_to(checkout / root).as_posix()
        for package, root in roots.items()
        for path in (checkout / root / package).rglob("*.py")
    }
    assert {name for name in names(wheel) if name.endswith(".py")} == expected


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_wheel_says_that_it_is_typed(wheel: Path, package: str) -> None:
    assert f"{package}/py.typed" in names(wheel)


def test_wheel_holds_the_licence(wheel: Path) -> None:
    assert f"mmrewrite-{mmrewrite.__version__}.dist-info/licenses/LICENSE" in names(wheel)


def test_wheel_from_the_source_distribution_is_the_same(wheel: Path, checkout: Path, tmp_path: Path) -> None:
    source = build("sdist", checkout, tmp_path / "sdist")
    with tarfile.open(source) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.glob("mmrewrite-*")
    again = build("wheel", unpacked, tmp_path / "wheel")
    assert names(again) == names(wheel)


def test_wheel_installs_and_starts(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "venv"
    venv.create(environment, with_pip=True)
    scripts = environment / ("Scripts" if os.name == "nt" else "bin")
    run(scripts / "python", "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", wheel)
    assert run(scripts / "mmrewrite", "--version", cwd=tmp_path).split()[-1] == mmrewrite.__version__
    out = run(scripts / "python", "-c", "import mmrewrite; print(mmrewrite.__file__)", cwd=tmp_path)
    assert str(environment) in out


def requirement_names(lines: list[str]) -> set[str]:
    return {re.split(r"[\[<>=!~ ;]", line)[0].lower().replace("_", "-") for line in lines}


def test_lock_covers_the_dependencies_and_names_no_place() -> None:
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    assert not re.search(r"://|\s/|\\|^-", lock, re.MULTILINE)
    pinned = [line for line in lock.splitlines() if line and not line.lstrip().startswith("#")]
    assert all("==" in line for line in pinned)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    assert requirement_names(wanted) - {"mmrewrite"} <= requirement_names(pinned)


def test_installed_version_is_the_one_of_the_source() -> None:
    try:
        installed = importlib.metadata.version("mmrewrite")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("mmrewrite is not installed here")
    assert installed == mmrewrite.__version__
