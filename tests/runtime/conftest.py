"""The tests in this folder import JAX. Where it is not installed, each file is reported as skipped."""

import importlib.util
from pathlib import Path

import pytest

MISSING = [name for name in ("jax", "flax", "optax") if importlib.util.find_spec(name) is None]


class SkippedModule(pytest.Module):
    """A test file that is never imported."""

    def collect(self):
        pytest.skip(
            f"{self.path.name} needs {', '.join(MISSING)}: pip install 'mmrewrite[flax]'", allow_module_level=True
        )


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    return SkippedModule.from_parent(parent, path=module_path) if MISSING else None


@pytest.fixture
def double():
    """Computes in double precision."""
    import jax

    with jax.enable_x64(True):
        yield
