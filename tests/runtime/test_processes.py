"""Steps whose devices belong to several processes: what runs, and what is refused before it can hang."""

import os
import socket
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mmruntime as mm
from mmruntime._execution import processes as _processes
from tests.runtime.helpers import batches, layer, on, squares, stages, weights

REFUSED = (
    r"mjit: step is cut into programs for submeshes, which run in one process at present, but the devices of its mesh "
    r"belong to processes 0, 1, and this is process \d\. Use devices of one process, as in mm\.MultiMesh\(\.\.\., "
    r"devices=jax\.local_devices\(\)\), or let every task run on the whole mesh\. step\.plan\(\*args\)"
)


def step(params, batch):
    def loss(params, batch):
        x = batch["x"]
        for index, w in enumerate(params):
            x = mm.task(layer, task=on(index))(w, x)
        return squares(x, batch["y"])

    return mm.microbatch(jax.value_and_grad(loss), argnum=1, count=2, schedule="1f1b")(params, batch)


@pytest.fixture
def two_processes(monkeypatch):
    """As if another process had some of the devices."""
    monkeypatch.setattr(_processes, "processes", lambda mesh: (0, 1))


@pytest.mark.usefixtures("two_processes")
@pytest.mark.parametrize("planned", [False, True], ids=["at_once", "after_plan"])
@pytest.mark.parametrize("how", ["__call__", "timeline", "measure"])
def test_a_step_with_submeshes_is_refused(how, planned):
    compiled = mm.mjit(step, mesh=stages(2))
    arguments = (weights(2), batches(1)[0])
    if planned:
        assert compiled.plan(*arguments).loops
    for _ in range(2):
        with pytest.raises(NotImplementedError, match=REFUSED):
            getattr(compiled, how)(*arguments)
    assert compiled.num_plans == planned  # it is refused before anything is compiled


@pytest.mark.usefixtures("two_processes")
def test_what_does_not_send_between_submeshes_stays():
    compiled = mm.mjit(step, mesh=stages(2))
    compiled.plan(weights(2), batches(1)[0])
    made = mm.mjit(lambda: [jnp.asarray(w) for w in weights(2)], out_like=compiled)()
    np.testing.assert_array_equal(made[1], jnp.asarray(weights(2)[1]))
    with stages(2):
        assert mm.task(jnp.cos, task=on(1))(jnp.zeros(2)).tolist() == [1.0, 1.0]
    everywhere = mm.mjit(lambda x: mm.task(jnp.cos, mesh_slice={})(x), mesh=stages(2))
    assert everywhere(jnp.zeros(2)).tolist() == [1.0, 1.0]
    with mm.enable_fast_path(False), pytest.raises(NotImplementedError, match="run in one process at present"):
        everywhere(jnp.zeros(2))


PROGRAM = """
import sys
import mmruntime as mm

rank, address = int(sys.argv[1]), sys.argv[2]
mm.init(cpus=2, coordinator_address=address, num_processes=2, process_id=rank)
import jax
import numpy as np
from tests.runtime.test_processes import batches, stages, step, weights

arguments = (weights(2), batches(1)[0])
here = mm.MultiMesh(axis_sizes=(2,), axis_names=("stage",), devices=jax.local_devices())
loss, grads = mm.mjit(step, mesh=here)(*arguments)
expected, _ = jax.jit(step)(*arguments)
assert abs(float(loss) - float(expected)) < 1e-3 * float(expected)
print(jax.process_count(), [sorted(d.process_index for d in g.devices()) == [rank] for g in grads])

compiled = mm.mjit(step, mesh=stages(2, data=2))
compiled.plan(*arguments)
made = mm.mjit(lambda: [jax.numpy.asarray(w) for w in weights(2)], out_like=compiled)()
print([{d.process_index for d in w.devices()} for w in made])
whole = mm.mjit(lambda w, b: ((b["x"] @ w) ** 2).sum(), mesh=stages(4))
print(round(float(whole(weights(1)[0], batches(1)[0])), 3) > 0)
def scaled(x, w):
    return jax.lax.psum(w * x, "i"), jax.lax.axis_index("i"), w

mapped = mm.compat.pmap(scaled, "i", in_axes=(0, None), out_axes=(0, 0, None))
total, index, w = mapped(np.arange(2.0) + 2 * rank, 2.0)
total, index, w = mapped(total, w + 1)
print("pmap", total.tolist(), index.tolist(), float(w))
try:
    mapped(np.arange(1.0), 1.0)
except ValueError as error:
    print(error)
try:
    compiled(*arguments)
except NotImplementedError as error:
    print(error)
"""


def test_two_processes(tmp_path):
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        address = f"localhost:{probe.getsockname()[1]}"
    clean = {key: value for key, value in os.environ.items() if key not in ("XLA_FLAGS", "JAX_PLATFORMS")}
    clean["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    command = [sys.executable, "-c", PROGRAM]
    running = []
    for rank in range(2):
        with (tmp_path / str(rank)).open("w") as output:
            running.append(
                subprocess.Popen([*command, str(rank), address], stdout=output, stderr=subprocess.STDOUT, env=clean)
            )
    try:
        statuses = [process.wait(timeout=120) for process in running]
    finally:
        for process in running:
            process.kill()
    for rank in range(2):
        lines = (tmp_path / str(rank)).read_text().splitlines()
        assert statuses[rank] == 0, "\n".join(lines)
        ours = [line for line in lines if not line.startswith("[")] + [line for line in lines if line.startswith("[{")]
        assert "2 [True, True]" in ours
        assert "[{0}, {1}]" in ours
        assert "True" in ours
        assert f"pmap [144.0, 144.0] [{2 * rank}, {2 * rank + 1}] 3.0" in ours
        assert any("one row for every device of its own, here 2, got 1" in line for line in ours)
        assert any(line.startswith("mjit: step is cut into programs") for line in ours)
