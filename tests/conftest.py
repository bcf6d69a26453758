"""Settings that must be in place before JAX is imported, here and in the processes that tests start."""

import importlib.metadata
import importlib.util
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DEVICES = 8

# Children find the packages as pytest does (`pythonpath` in pyproject.toml), installed or not.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(ROOT), str(ROOT / "codemods"), str(ROOT / "runtime"), *filter(None, [os.environ.get("PYTHONPATH")])]
)

# Nearly all of the time goes into compiling small programs once. Without LLVM's optimization they compile in two thirds
# of the time, and where XLA can still write loops without MLIR (not in JAX 0.12, which refuses the flag), in a third.
# `.ci/run` runs the tests that compare bit by bit once more as users compile, with MMREWRITE_TESTS_OPTIMIZED=1.
_quick = ["--xla_backend_optimization_level=0"]
if importlib.util.find_spec("jax") is not None and importlib.metadata.version("jax").startswith("0.10."):
    _quick.append("--xla_cpu_use_fusion_emitters=false")
OPTIMIZED = os.environ.get("MMREWRITE_TESTS_OPTIMIZED") == "1"

_flags = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if "host_platform_device_count" not in flag]
_flags += [] if OPTIMIZED else [flag for flag in _quick if flag not in _flags]
os.environ["XLA_FLAGS"] = " ".join([*_flags, f"--xla_force_host_platform_device_count={DEVICES}"])
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_NUMPY_RANK_PROMOTION"] = "raise"
os.environ["JAX_NUMPY_DTYPE_PROMOTION"] = "strict"


def pytest_report_header(config: pytest.Config) -> str:
    if importlib.util.find_spec("jax") is None:
        return "JAX: not installed, so the tests in tests/runtime are skipped"
    version = importlib.metadata.version("jax")
    compiled = "optimized as for users" if OPTIMIZED else "compiled without optimization"
    return f"JAX: {version}, on {DEVICES} virtual CPU devices, {compiled}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Slow tests run when asked for."""
    if config.getoption("markexpr"):
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    config.hook.pytest_deselected(items=slow)
    items[:] = [item for item in items if item not in slow]
