"""The wheel that a clean checkout gives: what is in it, and that it installs and starts."""

import email
import email.message
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
from scripts import load_script

import mmrewrite
from mmmodernize.names import markers

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {"mmcodemods", "mmmodernize", "mmrewrite", "mmruntime"}


REPOSITORY = "https://example.org/owner/mmrewrite"


def run(*command: object, cwd: Path | None = None, repository: str = REPOSITORY) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["REPOSITORY_URL"] = repository
    finished = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


def build(kind: str, source: Path, out: Path, repository: str = REPOSITORY) -> Path:
    run(sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", out, cwd=source, repository=repository)
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


def test_wheel_holds_four_packages_and_nothing_else(wheel: Path) -> None:
    top = {name.split("/")[0] for name in names(wheel)}
    assert top == PACKAGES | {f"mmrewrite-{mmrewrite.__version__}.dist-info"}


def test_wheel_holds_every_module(wheel: Path, checkout: Path) -> None:
    roots = {"mmrewrite": ".", "mmcodemods": "codemods", "mmmodernize": "codemods", "mmruntime": "runtime"}
    expected = {
        path.relative_to(checkout / root).as_posix()
        for package, root in roots.items()
        for path in (checkout / root / package).rglob("*.py")
    }
    assert {name for name in names(wheel) if name.endswith(".py")} == expected


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_wheel_says_that_it_is_typed(wheel: Path, package: str) -> None:
    assert f"{package}/py.typed" in names(wheel)


def test_wheel_holds_the_markers(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read("mmmodernize/names/markers.bin") == markers.built()


def test_wheel_holds_the_licence(wheel: Path) -> None:
    assert f"mmrewrite-{mmrewrite.__version__}.dist-info/licenses/LICENSE" in names(wheel)


def test_wheel_from_the_source_distribution_is_the_same(wheel: Path, checkout: Path, tmp_path: Path) -> None:
    source = build("sdist", checkout, tmp_path / "sdist")
    with tarfile.open(source) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.glob("mmrewrite-*")
    again = build("wheel", unpacked, tmp_path / "wheel", repository="https://example.org/another")
    assert names(again) == names(wheel)
    assert metadata(again)[0].get_all("Project-URL") == metadata(wheel)[0].get_all("Project-URL")


def test_wheel_installs_and_starts(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "venv"
    venv.create(environment, with_pip=True)
    scripts = environment / ("Scripts" if os.name == "nt" else "bin")
    run(scripts / "python", "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", wheel)
    assert run(scripts / "mmrewrite", "--version", cwd=tmp_path).split()[-1] == mmrewrite.__version__
    out = run(scripts / "python", "-c", "import mmrewrite; print(mmrewrite.__file__)", cwd=tmp_path)
    assert str(environment) in out


def metadata(wheel: Path) -> tuple[email.message.Message, str]:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        message = email.message_from_bytes(archive.read(name))
    return message, str(message.get_payload())


@pytest.mark.parametrize(
    ("origin", "address"),
    [
        ("https://github.com/owner/mmrewrite.git", "https://github.com/owner/mmrewrite"),
        ("https://user:word@git.example.org/group/part/mmrewrite", "https://git.example.org/group/part/mmrewrite"),
        ("git@github.com:owner/mmrewrite.git", "https://github.com/owner/mmrewrite"),
        ("ssh://git@example.org/~owner/mmrewrite/", "https://example.org/~owner/mmrewrite"),
        ("/home/owner/mmrewrite", None),
        ("file:///home/owner/mmrewrite", None),
        ("../mmrewrite", None),
    ],
)
def test_the_address_of_a_remote_is_one_that_a_browser_opens(origin: str, address: str | None) -> None:
    pytest.importorskip("hatchling")
    hook = load_script("hatch_build.py")
    assert hook.web_address(origin) == address


@pytest.fixture(scope="module")
def runtime_wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", checkout / "runtime", tmp_path_factory.mktemp("runtime"))


def test_the_page_of_the_package_has_no_link_that_leads_nowhere_there(wheel: Path, runtime_wheel: Path) -> None:
    for built in (wheel, runtime_wheel):
        head, text = metadata(built)
        assert head["Description-Content-Type"] == "text/markdown"
        assert head["Author"]
        addresses = dict(line.split(", ") for line in head.get_all("Project-URL") or [])
        assert {"Source", "Documentation", "Changelog", "Issues"} == set(addresses)
        assert all(address.startswith(REPOSITORY) for address in addresses.values())
        assert "Programming Language :: Python :: 3.13" in (head.get_all("Classifier") or [])
        targets = re.findall(r"\]\(([^)\s]+)\)", text)
        assert [target for target in targets if "://" not in target] == []


def test_the_runtime_is_a_wheel_of_its_own(wheel: Path, runtime_wheel: Path) -> None:
    inside = names(runtime_wheel)
    own = f"mmruntime-{mmrewrite.__version__}.dist-info"
    assert {name.split("/")[0] for name in inside} == {"mmruntime", own}
    assert f"{own}/licenses/LICENSE" in inside
    assert [name for name in inside if name.startswith("mmruntime/")] == [
        name for name in names(wheel) if name.startswith("mmruntime/")
    ]
    required = metadata(runtime_wheel)[0].get_all("Requires-Dist") or []
    assert requirement_names(required) == {"jax", "numpy", "flax", "optax"}
    assert (ROOT / "runtime" / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_the_runtime_wheel_stands_alone(runtime_wheel: Path, tmp_path: Path) -> None:
    """Its plain part runs where nothing else is installed; the rest imports nothing of the tool (tests/layers.py)."""
    folder = tmp_path / "alone"
    with zipfile.ZipFile(runtime_wheel) as archive:
        archive.extractall(folder)
    program = "import sys; sys.path.insert(0, sys.argv[1]); from mmruntime import schedules; print(schedules.__file__)"
    assert str(folder) in run(sys.executable, "-I", "-S", "-c", program, folder, cwd=tmp_path)


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


def test_the_lock_of_the_demo_has_its_packages_with_hashes_and_no_others() -> None:
    demo, everything = (
        re.findall(r"^([\w.-]+==[^\s;]+)", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE)
        for name in ("requirements-demo.lock", "requirements.lock")
    )
    assert set(demo) <= set(everything)
    assert requirement_names(demo) & {"pytest", "mypy", "pyright", "ruff", "mkdocs", "hypothesis", "equinox"} == set()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["runtime"], *extras["flax"], "hatchling"]
    assert requirement_names(wanted) - {"mmrewrite"} <= requirement_names(demo)
    text = (ROOT / "requirements-demo.lock").read_text(encoding="utf-8")
    assert not re.search(r"://|^--(?!hash)", text, re.MULTILINE)
    for block in re.split(r"\n(?=[\w])", text)[1:]:
        assert "--hash=sha256:" in block, block


def test_installed_version_is_the_one_of_the_source() -> None:
    try:
        installed = importlib.metadata.version("mmrewrite")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("mmrewrite is not installed here")
    assert installed == mmrewrite.__version__


def test_both_wheels_need_the_same_versions() -> None:
    """`.ci/lowest` tests the lowest that the one allows."""
    whole, runtime = (
        tomllib.loads((ROOT / name).read_text(encoding="utf-8"))["project"]
        for name in ("pyproject.toml", "runtime/pyproject.toml")
    )
    extras = whole["optional-dependencies"]
    assert runtime["dependencies"] == extras["runtime"]
    assert ["mmrewrite[runtime]", *runtime["optional-dependencies"]["flax"]] == extras["flax"]
    tests = re.findall(r"^    (tests/[^\s:]+)", (ROOT / ".ci" / "lowest").read_text(encoding="utf-8"), re.MULTILINE)
    assert tests
    assert [test for test in tests if not (ROOT / test).is_file()] == []
