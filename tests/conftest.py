"""Settings that must be in place before JAX is imported, here and in the processes that tests start."""

import atexit
import collections
import gc
import importlib.metadata
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parents[1]
DEVICES = 8

# Children find the packages as pytest does (`pythonpath` in pyproject.toml), installed or not.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(ROOT), str(ROOT / "codemods"), str(ROOT / "runtime"), *filter(None, [os.environ.get("PYTHONPATH")])]
)

# Else each of the many processes that tests start compiles all that it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Where a shell has started the tests in the background, they ignore Ctrl-C, and programs that they start would too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Much of the time goes into compiling small programs. Nearly half of them are those of other tests, or of processes
# that tests start, so all of a run share a cache on disk. Without LLVM's optimization they take two thirds of the time,
# and where XLA can still write loops without MLIR (not in JAX 0.12, which refuses the flag), a third, with one module
# for LLVM to a program. MMREWRITE_TESTS_OPTIMIZED=1 compiles as users compile.
_quick = ["--xla_backend_optimization_level=0"]
if importlib.util.find_spec("jax") is not None and importlib.metadata.version("jax").startswith("0.10."):
    _quick += ["--xla_cpu_use_fusion_emitters=false", "--xla_cpu_parallel_codegen_split_count=1"]
OPTIMIZED = os.environ.get("MMREWRITE_TESTS_OPTIMIZED") == "1"

# Of families of programs, with the mark `family`, one of so many cases runs by default, or as the mark says.
FAMILY_STRIDE = 16

if OPTIMIZED:
    # Which `verify` leaves out by itself.
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "0"
_flags = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if "host_platform_device_count" not in flag]
_flags += [] if OPTIMIZED else [flag for flag in _quick if flag not in _flags]
os.environ["XLA_FLAGS"] = " ".join([*_flags, f"--xla_force_host_platform_device_count={DEVICES}"])
# Results of earlier runs would hide what a test changes in the tool while it runs.
os.environ["MMREWRITE_CACHE_DIR"] = ""
# What a run says after some seconds depends on how busy the machine is.
os.environ["MMREWRITE_PROGRESS"] = os.environ["MMRUNTIME_PROGRESS"] = "0"
os.environ["JAX_PLATFORMS"] = "cpu"
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:  # workers and children take that of the process that started them
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="mmrewrite-tests-")
    atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
os.environ["JAX_NUMPY_RANK_PROMOTION"] = "raise"
os.environ["JAX_NUMPY_DTYPE_PROMOTION"] = "strict"

# No test may fail for a busy machine.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--share", type=int, default=1, help="run one test of so many of each file, the first among them")


def pytest_report_header() -> str:
    if importlib.util.find_spec("jax") is None:
        return "JAX: not installed, so the tests in tests/runtime are skipped"
    compiled = "optimized as for users" if OPTIMIZED else "compiled without optimization"
    return f"JAX: {importlib.metadata.version('jax')}, on {DEVICES} virtual CPU devices, {compiled}"


# Of these expressions of marks, what a file with a test that they choose holds.
IN_FILES = {"quick": "mark.quick", "optimized and not slow": "mark.optimized"}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave files without tests that are asked for out: importing the others takes longer than they do."""
    mark = IN_FILES.get(config.getoption("markexpr"))
    if collection_path.suffix != ".py" or mark is None:
        return None
    return None if mark in collection_path.read_text(encoding="utf-8") else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out slow tests, and those that this compilation would fail, unless asked for by a mark or by name."""
    numbers: collections.Counter[str] = collections.Counter()
    for item in items:
        family = item.get_closest_marker("family") if hasattr(item, "callspec") else None
        if family is not None:
            test = item.nodeid.partition("[")[0]
            if (
                numbers[test] % (family.args[0] if family.args else FAMILY_STRIDE)
                and item.get_closest_marker("sample") is None
            ):
                item.add_marker(pytest.mark.slow)
            numbers[test] += 1
        if not OPTIMIZED and item.get_closest_marker("optimized") is not None:
            item.add_marker(pytest.mark.skip(reason="depends on optimized code: set MMREWRITE_TESTS_OPTIMIZED=1"))
    if "slow" in config.getoption("markexpr") or any("::" in argument for argument in config.args):
        return
    marks = ("slow",) if OPTIMIZED else ("slow", "optimized")
    share, places = config.getoption("--share"), collections.Counter[Path]()
    out = []
    for item in items:
        is_left = any(map(item.get_closest_marker, marks))
        is_other = not is_left and bool(places[item.path] % share)
        places[item.path] += not is_left
        out += [item] if is_left or is_other else []
    config.hook.pytest_deselected(items=out)
    left = {*out}
    items[:] = [item for item in items if item not in left]


def pytest_collection_finish() -> None:
    # Tracing makes millions of objects that live on; looking through all of them again and again takes its time.
    # Nothing is frozen: whoever asks for how many objects are, as a plan does, waits until they are counted.
    gc.set_threshold(50_000, 50, 100)


def pytest_sessionfinish() -> None:
    # Pytest searches for garbage several times as it ends, and Python once more: among gigabytes, half a minute.
    gc.freeze()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, in which the test runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
