"""What `explain()` says of memory is what arrays take while the step runs."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import mmruntime as mm
from mmruntime._partition.pipeline.instructions import RunInstruction

WIDTH, STAGES, MICROBATCHES = 32, 2, 4
OPTIMIZER = optax.sgd(0.1, momentum=0.9)


def layer(w, x):
    return x + jnp.tanh(x @ w[0]) @ w[1]


def loss(weights, x):
    for index, w in enumerate(weights):
        x = mm.task(layer, task=mm.stage(index, STAGES))(w, x)
    return jnp.mean(x * x)


def make_step(schedule):
    def step(state, x):
        weights, moments = state
        grads = mm.microbatch(
            jax.value_and_grad(loss), count=MICROBATCHES, argnum=1, schedule=schedule, reduce="exact"
        )(weights, x)[1]
        updates, moments = OPTIMIZER.update(grads, moments, weights)
        return optax.apply_updates(weights, updates), moments

    return step


def arguments():
    weights = [(jnp.ones((WIDTH, 2 * WIDTH)), jnp.ones((2 * WIDTH, WIDTH))) for _ in range(STAGES)]
    return (weights, OPTIMIZER.init(weights)), jnp.ones((16 * MICROBATCHES, WIDTH))


def live() -> Counter[int]:
    """Bytes of arrays on each device; several arrays may share a buffer."""
    found: Counter[int] = Counter()
    seen = set()
    for array in jax.live_arrays():
        for shard in array.addressable_shards:
            place = (shard.device.id, shard.data.unsafe_buffer_pointer())
            if place not in seen:
                seen.add(place)
                found[shard.device.id] += shard.data.nbytes
    return found


@pytest.mark.parametrize(
    ("schedule", "donated"), [("1f1b", True), ("gpipe", False), ("zb-h1", True), ("zb-h1", False)], ids=str
)
def test_what_arrays_take_while_a_step_runs(schedule, donated):
    mesh = mm.MultiMesh(axis_sizes=(STAGES, 2), axis_names=("stage", "data"))
    step = mm.mjit(make_step(schedule), mesh=mesh, donate_argnums=(0,) if donated else ())
    shapes = jax.eval_shape(arguments)
    report = step.plan(*shapes)
    plan = step.latest_plan
    others = jax.live_arrays()  # None of them may go away while the step runs.
    before = live()
    placed = [
        jax.device_put(np.ones(leaf.shape, leaf.dtype), layout)
        for leaf, layout in zip(jax.tree.leaves(shapes), plan.input_layouts(), strict=True)
    ]
    peaks: Counter[int] = Counter()

    def watch(index, _, results, at):
        jax.block_until_ready(results)
        item = plan.program.instructions[index]
        temporary: Counter[int] = Counter()
        if isinstance(item, RunInstruction):
            size = plan.compiled.programs[item.spec].memory_analysis().temp_size_in_bytes
            devices = plan.placement.submeshes.meshes[item.spec.submesh].devices.flat
            temporary.update({device.id: size for device in devices})
        for device, size in live().items():
            peaks[device] = max(peaks[device], size - before[device] + temporary[device])

    plan.runner.run_watched(placed, watch)
    del others
    for row in report.memory:
        for device in row.devices:
            assert row.held.total == pytest.approx(peaks[device], rel=0.05)


def test_parts_have_the_sizes_of_their_arrays():
    mesh = mm.MultiMesh(axis_sizes=(STAGES,), axis_names=("stage",))
    step = mm.mjit(make_step("gpipe"), mesh=mesh)
    report = step.plan(*jax.eval_shape(arguments))
    weights = 4 * WIDTH * 4 * WIDTH
    first, last = report.memory
    assert (first.submeshes, last.submeshes) == ((0,), (1,))
    assert first.held.parameters == last.held.parameters == weights
    assert first.held.optimizer_state == weights
    assert first.held.gradients == weights
    assert first.running == "stage_0, backward of microbatch 0"
    assert f"memory per device: at most {report.memory[0].held.total / 1024:.1f} KiB, on submesh 0" in str(report)


def test_overlapping_submeshes_share_the_memory_of_their_devices():
    def step(a, b):
        a = mm.task(lambda x: jnp.tanh(x @ x), task=mm.Task(mesh_slice={"stage": 0}))(a)
        return mm.task(lambda x, y: x @ y, task=mm.Task(mesh_slice={}))(a, b)

    mesh = mm.MultiMesh(axis_sizes=(2,), axis_names=("stage",))
    shape = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    rows = {row.devices: row for row in mm.mjit(step, mesh=mesh).plan(shape, shape).memory}
    assert set(rows) == {(0,), (1,)}
    assert rows[0,].held.total > rows[1,].held.total
