"""The tests in this folder import JAX. Where it is not installed, each file is reported as skipped."""

import gc
import importlib.util
from pathlib import Path

import pytest

# Each program that XLA compiles for a CPU keeps mappings of memory, of which Linux gives a process 65,530
# (`vm.max_map_count`); beyond that XLA crashes. A worker that runs thousands of tests would get there. By then it would
# hold many gigabytes, so that programs go earlier: those that are needed again are on disk.
MAPPINGS = Path("/proc/self/maps")
MOST_MAPPINGS = 6_000

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


@pytest.fixture
def free_promotion():
    """Lets ranks and types be promoted, for programs that are written as users write them."""
    import jax

    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


@pytest.fixture
def lowered(monkeypatch):
    """The names of the programs that are lowered."""
    from mmruntime._execution import compile as compile_

    names = []
    lower = compile_._lower

    def counted(spec, shardings, donated, name):
        names.append(name)
        return lower(spec, shardings, donated, name)

    monkeypatch.setattr(compile_, "_lower", counted)
    return names


@pytest.fixture(autouse=True, scope="module")
def room_for_programs():
    """Lets go of compiled programs after a file of tests, where there are very many."""
    yield
    if MAPPINGS.exists() and MAPPINGS.read_bytes().count(b"\n") > MOST_MAPPINGS:
        import jax

        jax.clear_caches()
        gc.collect()
