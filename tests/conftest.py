"""Settings that must be in place before JAX is imported, here and in the processes that tests start."""

import atexit
import collections
import gc
import importlib.metadata
import importlib.util
import os
import re
import shutil
import signal
import tempfile
import threading
from collections.abc import Generator, Iterable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parents[1]
DEVICES = 8

# Children find the packages as pytest does (`pythonpath` in pyproject.toml), installed or not.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(ROOT), str(ROOT / "codemods"), str(ROOT / "runtime"), *filter(None, [os.environ.get("PYTHONPATH")])]
)

# Where a shell has started the tests in the background, they ignore Ctrl-C, and programs that they start would too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Much of the time goes into compiling small programs. Without LLVM's optimization they compile in two thirds of the
# time, and where XLA can still write loops without MLIR (not in JAX 0.12, which refuses the flag), in a third, with
# one module for LLVM to a program. Nearly half of the programs are those of other tests, or of processes that tests
# start, so all of a run share a cache on disk.
# That is for `.ci/run`, which sets MMREWRITE_TESTS_QUICK=1, and runs the tests that hang on code generation without it.
# By default everything is compiled as users compile.
_quick = ["--xla_backend_optimization_level=0"]
if importlib.util.find_spec("jax") is not None and importlib.metadata.version("jax").startswith("0.10."):
    _quick += ["--xla_cpu_use_fusion_emitters=false", "--xla_cpu_parallel_codegen_split_count=1"]
OPTIMIZED = os.environ.get("MMREWRITE_TESTS_QUICK") != "1"

# Which kinds of tests run: those with the mark `text`, `python` or `optimized`, and all others, `jax`. `.ci/run` leaves
# out of a leg what another runs under the same or stricter conditions; tests/test_legs.py holds that some leg runs it.
KINDS = ("text", "python", "optimized", "jax")
CHOSEN = os.environ.get("MMREWRITE_TESTS", ",".join(KINDS)).split(",")
if not set(CHOSEN) <= set(KINDS):
    raise pytest.UsageError(f"MMREWRITE_TESTS={','.join(CHOSEN)}: known kinds are {', '.join(KINDS)}")

# Where `.ci/run` has two versions of Python, each with its version of JAX, a test runs on one of them: every other case
# in the grid of a test's parameters, so that each version sees each value of each parameter, and of tests without
# parameters every other one in a file. Tests with the mark `both_versions` run on both. Of families of programs, with
# the mark `family`, every sixth case runs on each version, and the others wait for the night, as tests with the mark
# `nightly` do: `.ci/nightly` runs every test on both. By default all run.
HALVES = ("first", "second")
NIGHT = "night"
FAMILY = ("first", NIGHT, "second", NIGHT, NIGHT, NIGHT)
HALF = os.environ.get("MMREWRITE_TESTS_HALF", "")
BOTH = "both"  # all but what waits for the night
if HALF not in ("", BOTH, *HALVES):
    raise pytest.UsageError(f"MMREWRITE_TESTS_HALF={HALF}: known halves are {', '.join((*HALVES, BOTH))}")

_flags = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if "host_platform_device_count" not in flag]
_flags += [] if OPTIMIZED else [flag for flag in _quick if flag not in _flags]
os.environ["XLA_FLAGS"] = " ".join([*_flags, f"--xla_force_host_platform_device_count={DEVICES}"])
# Results of earlier runs would hide what a test changes in the tool while it runs.
os.environ["MMREWRITE_CACHE_DIR"] = ""
os.environ["JAX_PLATFORMS"] = "cpu"
if OPTIMIZED:
    os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)
elif "JAX_COMPILATION_CACHE_DIR" not in os.environ:  # workers and children take that of the process that started them
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="mmrewrite-tests-")
    atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
os.environ["JAX_NUMPY_RANK_PROMOTION"] = "raise"
os.environ["JAX_NUMPY_DTYPE_PROMOTION"] = "strict"

# No test may fail for a busy machine.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")


def pytest_report_header(config: pytest.Config) -> list[str]:
    kinds = [f"kinds of tests: {', '.join(CHOSEN)}; left out: {', '.join(set(KINDS) - set(CHOSEN)) or 'none'}"]
    kinds += (
        [f"of the tests without the mark `both_versions`, the {HALF} half, and none that wait for the night"]
        if HALF
        else []
    )
    if importlib.util.find_spec("jax") is None:
        return ["JAX: not installed, so the tests in tests/runtime are skipped", *kinds]
    version = importlib.metadata.version("jax")
    compiled = "optimized as for users" if OPTIMIZED else "compiled without optimization"
    return [f"JAX: {version}, on {DEVICES} virtual CPU devices, {compiled}", *kinds]


def kinds_in(text: str) -> set[str]:
    """The kinds of tests that a file with this text can hold."""
    whole = re.search(r"^pytestmark = \[?\s*pytest\.mark\.(text|python|optimized)\b", text, re.MULTILINE)
    return {*(kind for kind in KINDS if f"mark.{kind}" in text), *(() if whole else ("jax",))}


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave files out whose tests are all of kinds that are not chosen: importing them takes its time."""
    if collection_path.suffix != ".py" or kinds_in(collection_path.read_text(encoding="utf-8")) & set(CHOSEN):
        return None
    return True


def kind_of(item: pytest.Item) -> str:
    return next((kind for kind in KINDS if kind != "jax" and item.get_closest_marker(kind)), "jax")


def values_of(item: pytest.Item) -> dict[str, tuple[int, ...]]:
    """Of each axis in the grid of a test's parameters, the identity of the case's values. Empty without parameters."""
    callspec = getattr(item, "callspec", None)
    if callspec is None:
        return {}
    axes = [mark.args[0] for mark in item.iter_markers("parametrize")]
    together = [re.findall(r"\w+", axis) if isinstance(axis, str) else list(axis) for axis in axes]
    alone = [[name] for name in callspec.params if not any(name in names for names in together)]
    return {names[0]: tuple(id(callspec.params[name]) for name in names) for names in together + alone}


def halves_of(items: Iterable[pytest.Item]) -> dict[pytest.Item, str]:
    """The half to which each test belongs that runs on one of the two versions, or NIGHT."""
    found: dict[pytest.Item, str] = {}
    seen: dict[object, dict[object, int]] = collections.defaultdict(dict)
    for item in items:
        if item.get_closest_marker("nightly") is not None:
            found[item] = NIGHT
            continue
        # Tests of text have one leg to run in.
        if kind_of(item) == "text" or any(map(item.get_closest_marker, ("both_versions", "slow"))):
            continue
        test, values = item.nodeid.partition("[")[0], values_of(item)
        places = [((test, axis), value) for axis, value in values.items()] or [(item.path, item)]
        turns = FAMILY if values and item.get_closest_marker("family") else HALVES
        number = sum(seen[where].setdefault(what, len(seen[where])) for where, what in places)
        found[item] = turns[number % len(turns)]
    return found


ALL_HALVES = pytest.StashKey[dict[pytest.Item, str]]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the kinds and the half that are not chosen, and slow tests unless a mark is asked for."""
    slow = [] if config.getoption("markexpr") else [item for item in items if item.get_closest_marker("slow")]
    halves = config.stash[ALL_HALVES] = halves_of(items)
    chosen = {"": (*HALVES, NIGHT), BOTH: HALVES}.get(HALF, (HALF,))
    other_half = [item for item, half in halves.items() if half not in chosen]
    out = {*slow, *other_half, *(item for item in items if kind_of(item) not in CHOSEN)}
    config.hook.pytest_deselected(items=list(out))
    items[:] = [item for item in items if item not in out]


def pytest_collection_finish() -> None:
    # Tracing makes millions of objects that live on; looking through all of them again and again takes its time.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Have tests of text fail where they are skipped for a missing module: the other legs rely on them."""
    report = yield
    if report.skipped and kind_of(item) in ("text", "python") and "could not import" in str(report.longrepr):
        report.outcome = "failed"
    return report


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, in which the test runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
