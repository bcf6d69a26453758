"""What processes of a job do and hold true. Every function runs in all processes of its job."""

import functools
import importlib
import os
import random
import sys
import time
from collections import Counter
from unittest import mock

import jax
import jax.experimental.multihost_utils
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import mmruntime as mm
from mmruntime import _compat
from mmruntime._execution.transfers import channels
from mmruntime._execution.transfers.crossing import Crossing
from mmruntime._processes.group import group_of
from mmruntime._processes.progress import progress
from mmruntime._processes.transports import NAMES
from mmruntime._step import several_processes
from tests.runtime.helpers import adam_state, adam_step, batches, in_stages, normal, plain_chain, squares, weights


def devices(order: str = ""):
    """All devices, in the order of these positions."""
    every = jax.devices()
    return [every[int(position)] for position in order.split(",")] if order else every


def same_shards(found, expected, *, exact=False):
    """Hold every shard of this process to the full values; returns how many there were."""
    count = 0
    pairs = zip(jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(expected), strict=True)
    for (path, array), whole in pairs:
        where = jax.tree_util.keystr(path)
        assert isinstance(array, jax.Array), where
        assert array.shape == np.shape(whole), where
        assert array.dtype == jnp.asarray(whole).dtype, where
        data = whole
        if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
            data = jax.random.key_data(whole)
        data = np.asarray(data)
        for shard in array.addressable_shards:
            own = shard.data
            if jnp.issubdtype(own.dtype, jax.dtypes.prng_key):
                own = jax.random.key_data(own)
            count += 1
            if exact or data.dtype.kind not in "fV" or data.dtype.itemsize < 4:
                np.testing.assert_array_equal(np.asarray(own), data[shard.index], where)
            else:
                np.testing.assert_allclose(np.asarray(own), data[shard.index], rtol=1e-5, atol=1e-5, err_msg=where)
    return count


CAPTURED = np.arange(8, dtype=np.float32)


def first(w, x, key, mask):
    x = mm.with_sharding_constraint(x, P("batch", None))
    y = jnp.where(mask, x @ w, 0) + CAPTURED[None] + jax.random.normal(key, ())
    small = jnp.clip(jnp.round(y), -7, 7).astype(jnp.int4)
    return y.astype(jnp.bfloat16), y > 0, jax.random.split(key, 3), jnp.zeros((0, 8)), small


def second(w, h, positive, keys, empty, small):
    y = (h.astype(jnp.float32) @ w) * positive.astype(jnp.float32) + jax.random.normal(keys[1], h.shape) + empty.sum()
    return y + small.astype(jnp.float32), y.sum()


def everything(state, x, key, mask, flag):
    """A step with values of all kinds between its stages, in its state and in its results."""
    (w0, w1), n, k = state

    def place(stage):
        return mm.Task(name=f"t{stage}", mesh_slice={"stage": stage}, logical_axes=[("batch", "data")])

    values = mm.task(first, task=place(0))(w0, x, key, mask)
    y, total = mm.task(second, task=place(1))(w1, *values)
    state = ([w0 + n, w1 * 0.5], n + 1, jax.random.fold_in(k, 1))
    return state, y, total, 3.0, flag, jnp.float32(2.5), x, values[2], values[4]


def kinds(order: str = "") -> None:
    """Values of all kinds, as host values, global arrays, carried state and results of other stages."""
    every = devices(order)
    mesh = mm.MultiMesh(axis_sizes=(2, len(every) // 2), axis_names=("stage", "data"), devices=every)
    x, mask = normal(8, 8, dtype=np.float32), normal(8, 8, seed=1) > -0.5
    key = jax.random.key(7)
    state = ([normal(8, 8, seed=2 + i, dtype=np.float32) for i in range(2)], np.float32(1), jax.random.key(3))
    plain = jax.jit(everything)
    expected = [plain(state, x, key, mask, True)]
    for scale in (2, 3, 4):
        expected.append(plain(expected[-1][0], np.float32(scale) * x, key, mask, True))

    step = mm.mjit(everything, mesh=mesh, donate_argnums=0)
    results = step(state, x, key, mask, True)
    assert same_shards(results, expected[0]) > 0
    assert isinstance(float(results[2]), float)
    held = results[0]
    donated = bool(held[0][0].addressable_shards)
    results = step(held, np.float32(2) * x, key, mask, True)
    same_shards(results, expected[1])
    assert held[0][0].is_deleted() == donated
    # The same batch as one array over all devices, in two tilings.
    over = Mesh(np.array(every), "z")
    for spec, scale, want in ((P("z"), 3, expected[2]), (P(None, "z"), 4, expected[3])):
        whole = np.float32(scale) * x
        batch = jax.make_array_from_callback((8, 8), NamedSharding(over, spec), lambda i, whole=whole: whole[i])
        results = step(results[0], batch, key, mask, True)
        same_shards(results, want)
    # A result of the last stage as the argument of the first, and the scalar that all have.
    again = step(results[0], results[1], key, mask, results[4])
    want = plain(expected[3][0], expected[3][1], key, mask, True)
    same_shards(again, want)
    # Weakly typed arrays are so everywhere, or the processes would not see the same calls.
    assert step.num_plans <= 3, step.num_plans
    print("plans", step.num_plans, [str(jax.typeof(leaf)) for leaf in jax.tree.leaves(results)])

    def init(key):
        pair = [jax.random.normal(key, (8, 8)), jax.random.normal(key, (8, 8)) * 2]
        return pair, jnp.float32(1), key

    made = mm.mjit(init, out_like=step)(jax.random.key(1))
    same_shards(made, jax.jit(init)(jax.random.key(1)), exact=True)
    same_shards(step(made, x, key, mask, True), plain(init(jax.random.key(1)), x, key, mask, True))

    text = str(step.explain())
    assert f"this is process {jax.process_index()}" in text
    assert os.environ.get("MMRUNTIME_TRANSPORT", "transfer") in text


def gathered() -> None:
    """All values of a tree, in every process, wherever they lie."""
    me, every = jax.process_index(), jax.devices()
    mesh = mm.MultiMesh(axis_sizes=(2, len(every) // 2), axis_names=("stage", "data"))
    _, state, losses = trained(mesh, "1f1b")
    x = normal(8, 8, dtype=np.float32)
    spread = NamedSharding(Mesh(np.array(every), "z"), P(None, "z"))
    key = jax.random.key(5)
    last = mm.MultiMesh(axis_sizes=(1,), axis_names=("stage",), devices=every[-1:])
    tree = {
        "state": state,
        "loss": losses[-1],
        "cut": jax.make_array_from_callback(x.shape, spread, lambda i: x[i]),
        "key": mm.mjit(lambda key: jax.random.fold_in(key, 1), mesh=last)(key),
        "host": x,
        "name": "model",
    }
    found = mm.gather(tree)
    assert found["host"] is x
    assert found["name"] == "model"
    np.testing.assert_array_equal(found["cut"], x)
    assert jnp.array_equal(jax.random.key_data(found["key"]), jax.random.key_data(jax.random.fold_in(key, 1)))
    same_shards(state, found["state"], exact=True)
    leaves = [leaf for leaf in jax.tree.leaves(found) if isinstance(leaf, jax.Array)]
    assert all(leaf.is_fully_addressable for leaf in leaves)
    sums = [float(abs(w).sum()) for w in found["state"]["params"]]
    everyone = jax.experimental.multihost_utils.process_allgather(np.asarray(sums))
    assert (everyone == everyone[0]).all()
    device = jax.local_devices()[-1]
    assert {leaf.device for leaf in mm.gather(state["params"], device)} == {device}
    refused(lambda: mm.gather(state["params"][: 1 + me]), "do not agree on mm.gather", "the arrays", "jax.device_get")
    refused(lambda: mm.gather(x, spread), "device must be of this process")
    away = next(w for w in state["params"] if not w.addressable_shards)
    refused(lambda: np.asarray(away), "other processes have", "mm.gather(tree)", "JAX: Fetching value")


def trained(mesh, schedule, count=3, stage_of=(0, 1), **options):
    """Losses and the last state of a few steps of Adam."""
    num_layers = len(stage_of)

    def loss(params, batch):
        x = batch["x"]
        for index, stage in enumerate(stage_of):
            task = mm.Task(name=f"layer_{index}", mesh_slice={"stage": stage}, logical_axes=[("batch", "data")])
            x = mm.task(dense, task=task)(params[index], x)
        return squares(x, batch["y"])

    step = mm.mjit(adam_step(loss, schedule=schedule, **options), mesh=mesh, donate_argnums=0)
    state, losses = adam_state(weights(num_layers)), []
    for batch in batches(count):
        state, value = step(state, batch)
        losses.append(value)
    return step, state, losses


def dense(w, x):
    x = mm.with_sharding_constraint(x, P("batch", None))
    return jnp.tanh(x @ w)


SCHEDULES = {
    "gpipe": (0, 1),
    "1f1b": (0, 1),
    "zb-h1": (0, 1),
    "interleaved-1f1b": (0, 1, 0, 1),
}
# 1F1B with the forward passes of the first stage once more, which has two layers.
ONCE_MORE = "0F0,0F1,0R0,0B0,0F2,0R1,0B1,0F3,0R2,0B2,0R3,0B3\n1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3"


def once_more(path: str) -> None:
    """Forward passes that run once more, bit for bit as in one process, which saves them first."""
    mesh = mm.MultiMesh(axis_sizes=(2, 2), axis_names=("stage", "data"), devices=jax.devices()[:4])
    step, state, losses = trained(mesh, mm.schedules.Schedule.from_csv(ONCE_MORE), stage_of=(0, 0, 1, 1))
    assert any("once more" in row.kind for row in step.explain().programs)
    same_as_one_process(path, (state, losses))


def same_as_one_process(path: str, results) -> None:
    """In one process, save the results; in several, they are what that has saved, bit for bit."""
    leaves = jax.tree.leaves(results)
    if jax.process_count() == 1:
        np.savez(path, *map(np.asarray, leaves))
    else:
        saved = np.load(path)
        assert same_shards(leaves, [saved[f"arr_{index}"] for index in range(len(leaves))], exact=True)


def sliced(path: str, order: str = "") -> None:
    """Slices of sequences: their state is carried from slice to slice, in either direction."""
    mesh = mm.MultiMesh(axis_sizes=(2, 2), axis_names=("stage", "data"), devices=devices(order)[:4])

    def attention(p, x):
        x = mm.with_sharding_constraint(x, P("batch", None, None))
        scores = jnp.einsum("btd,bsd->bts", x @ p[0], x @ p[1])
        earlier = jnp.tril(jnp.ones((6, 6), bool))
        mixed = jnp.einsum("bts,bsd->btd", jax.nn.softmax(jnp.where(earlier[None], scores, -jnp.inf), -1), x @ p[2])
        return x + mixed

    def loss(params, batch):
        x = batch["x"]
        for stage, p in enumerate(params):
            task = mm.Task(name=f"layer_{stage}", mesh_slice={"stage": stage}, logical_axes=[("batch", "data")])
            x = mm.task(attention, task=task)(p, x)
        return jnp.square(x - batch["y"]).mean()

    params = [[normal(4, 4, seed=3 * stage + i, dtype=np.float32) for i in range(3)] for stage in range(2)]
    batch = {name: normal(8, 6, 4, seed=seed, dtype=np.float32) for seed, name in enumerate("xy", 10)}
    results = []
    for schedule in ("gpipe", "1f1b"):

        def step(params, batch, schedule=schedule):
            gradient = jax.value_and_grad(loss)
            value, grads = mm.microbatch(gradient, count=2, argnum=1, schedule=schedule, slices=3)(params, batch)
            return jax.tree.map(lambda p, g: p - np.float32(0.1) * g, params, grads), value

        run = mm.mjit(step, mesh=mesh, donate_argnums=0)
        state, losses = params, []
        for _ in range(2):
            state, value = run(state, batch)
            losses.append(value)
        (loop,) = run.explain().loops
        assert (loop.num_microbatches, loop.slices) == (2, 3)
        results.append((state, losses))
    same_as_one_process(path, results)


def other_tasks(path: str, order: str = "") -> None:
    """Tasks whose submesh depends on the microbatch, tasks within tasks, and stages that two submeshes have."""
    mesh = mm.MultiMesh(axis_sizes=(2, 2), axis_names=("stage", "data"), devices=devices(order)[:4])
    logical = [("batch", "data")]
    roaming = mm.Task(name="roaming", loop_dependent_mesh_slice=lambda k: {"stage": k % 2}, logical_axes=logical)

    def within(w, x):
        return mm.task(dense, task=mm.Task(name="inner", mesh_slice={"stage": 0}, logical_axes=logical))(w, x) + x

    def loss(params, batch):
        x = mm.task(dense, task=roaming)(params[0], batch["x"])
        for stage, w in enumerate(params[1:]):
            task = mm.Task(name=f"layer_{stage}", mesh_slice={"stage": stage}, logical_axes=logical)
            x = mm.task(dense if stage else within, task=task)(w, x)
        return squares(x, batch["y"])

    def in_two_stages(params, batch):
        return squares(in_stages(params, batch["x"], 2), batch["y"])

    results = []
    for each, schedule, count in ((loss, "1f1b", 3), (in_two_stages, "dualpipe", 2)):
        step = mm.mjit(adam_step(each, schedule=schedule), mesh=mesh, donate_argnums=0)
        state, losses = adam_state(weights(count)), []
        for batch in batches(2):
            state, value = step(state, batch)
            losses.append(value)
        results.append((state, losses))
    same_as_one_process(path, results)


def save_trained(path: str) -> None:
    """What one process computes, for `same_as_saved`."""
    arrays = {}
    for schedule, stage_of in SCHEDULES.items():
        mesh = mm.MultiMesh(axis_sizes=(2, 2), axis_names=("stage", "data"), devices=jax.devices()[:4])
        _, state, losses = trained(mesh, schedule, stage_of=stage_of)
        for index, leaf in enumerate(jax.tree.leaves((state, losses))):
            arrays[f"{schedule} {index}"] = np.asarray(leaf)
    np.savez(path, **arrays)


def same_as_saved(path: str, order: str = "", schedules: str = "") -> None:
    """The same steps, bit for bit those of one process."""
    saved = np.load(path)
    every = devices(order)
    mesh = mm.MultiMesh(axis_sizes=(2, 2), axis_names=("stage", "data"), devices=every[:4])
    for schedule in schedules.split(",") if schedules else SCHEDULES:
        _, state, losses = trained(mesh, schedule, stage_of=SCHEDULES[schedule])
        leaves = jax.tree.leaves((state, losses))
        found = same_shards(leaves, [saved[f"{schedule} {index}"] for index in range(len(leaves))], exact=True)
        assert (found > 0) == any(device.process_index == jax.process_index() for device in every[:4])
        print(schedule, [float(value) for value in losses if value.addressable_shards])


def inspected(hosts: str = "") -> None:
    """Reports of a step say what is here; the first process has the timeline of all. `hosts`: over several hosts."""
    me, count = jax.process_index(), jax.process_count()
    mesh = mm.MultiMesh(axis_sizes=(2, len(jax.devices()) // 2), axis_names=("stage", "data"))
    step, state, _ = trained(mesh, "1f1b", count=1)
    batch = batches(1)[0]
    report = step.plan(state, batch)
    assert report.process == me
    assert [row.processes for row in report.submeshes] == [(0,), (1,)]
    for row in report.programs:
        assert (row.device_flops is None) == (row.submesh != me)
    timeline = step.timeline(state, batch)
    submeshes = {span.submesh for span in timeline.spans}
    if me == 0:
        assert timeline.process is None
        assert submeshes == {0, 1}
        assert len(timeline.simulations) == 1
        # Processes of one Linux host have one clock.
        assert (timeline.clock_error == 0) == (sys.platform == "linux" and not hosts)
        assert timeline.clock_error < 1
        ends = {(span.submesh, span.kind, span.microbatch): span for span in timeline.spans if span.kind}
        for microbatch in range(4):
            forward, last = ends[0, "F", microbatch], ends[1, "FB", microbatch]
            assert last.end > forward.start
        print(timeline)
    else:
        assert timeline.process == me
        assert f"What process {me} ran" in str(timeline)
        assert me in submeshes
    page, picture = timeline.html(), timeline.svg()
    assert ("peak " in picture) == (timeline.process is None)
    assert ("lined up to" in page) == (timeline.process is None and timeline.clock_error > 0)
    assert (f"What process {me} ran or received" in page) == (timeline.process is not None)
    assert len(timeline.chrome_trace()["traceEvents"]) > len(timeline.spans)
    measured = step.measure(state, batch)
    assert all(stage.forward > 0 for stage in measured.loops[0])
    assert set(measured.transfers) == {(0, 1), (1, 0)}
    found = measured.simulated
    # Calls, and what transfers and programs take from each other where there are few cores, count there only.
    assert measured.apart.makespan != found.makespan > 0
    assert found.step_time > 0
    assert set(found.busy) == {0, 1}
    assert max(found.busy.values()) <= found.makespan
    figures = [*(stage.forward for stage in measured.loops[0]), found.makespan, found.step_time, *found.ends]
    costs = jax.tree.map(float, jax.numpy.asarray(figures).tolist())
    everyone = jax.experimental.multihost_utils.process_allgather(np.asarray(costs))
    assert (everyone == everyone[0]).all(), everyone
    assert everyone.shape[0] == count
    assert np.isfinite(float(step(state, batch)[1]))


def four_stages() -> None:
    """Stages of which some read the batch and some do not, with the loss read in every step."""

    def loss(params, batch):
        return squares(in_stages(params, batch["x"], 4), batch["y"])

    step = mm.mjit(adam_step(loss, schedule="1f1b"), mesh=mm.MultiMesh(axis_sizes=(4,), axis_names=("stage",)))
    plain = jax.jit(adam_step(lambda params, batch: squares(plain_chain(params, batch["x"]), batch["y"])))
    state = expected = adam_state(weights(4))
    for batch in batches(4):
        state, value = step(state, batch)
        expected, want = plain(expected, batch)
        np.testing.assert_allclose(float(value), float(want), rtol=1e-5)
    same_shards(state, expected)


def refused(call, *texts):
    """Hold a call to an error in every process that says all of these."""
    try:
        call()
    except (RuntimeError, ValueError, NotImplementedError) as error:
        missing = [text for text in texts if text not in str(error)]
        assert not missing, (missing, str(error))
        print(error)
    else:
        raise AssertionError(f"no error with {texts}")


def held_back() -> None:
    """A process that only sends to another one waits for it, within a few calls."""
    me = jax.process_index()
    mesh = mm.MultiMesh(axis_sizes=(2, len(jax.devices()) // 2), axis_names=("stage", "data"))
    w, batch = weights(2), batches(1)[0]
    evaluate = mm.mjit(lambda params, batch: squares(in_stages(params, batch["x"], 2), batch["y"]), mesh=mesh)
    expected = float(evaluate(w, batch))
    started = time.monotonic()
    if me:
        time.sleep(2)
    values = [evaluate(w, batch) for _ in range(8)]
    issued = time.monotonic() - started
    assert issued > 1.5, issued
    assert [float(value) for value in values] == [expected] * 8


def disagreements() -> None:
    """What differs between processes is named in all of them, with both values, before anything hangs."""
    me = jax.process_index()
    mesh = mm.MultiMesh(axis_sizes=(2, len(jax.devices()) // 2), axis_names=("stage", "data"))
    w, batch = weights(2), batches(1)[0]

    def compiled(rate=0.5, schedule="1f1b", name="train"):
        def loss(params, batch):
            return squares(in_stages(params, batch["x"], 2), batch["y"]) * np.float32(rate)

        def train(params, batch):
            return mm.microbatch(jax.value_and_grad(loss), argnum=1, count=2, schedule=schedule)(params, batch)

        train.__name__ = name
        return mm.mjit(train, mesh=mesh)

    both = "processes 0 and 1 do not agree on"
    refused(lambda: compiled(rate=0.5 + me)(w, batch), both, "the equations:", "process 0: ", "0.5", "1.5")
    refused(lambda: compiled(schedule=["1f1b", "gpipe"][me])(w, batch), "the schedule:", "process 1: gpipe, 2 microb")
    refused(lambda: compiled(name=["train", "evaluate"][me])(w, batch), "process 0: train", "process 1: evaluate")
    with mock.patch.object(_compat, "versions", lambda: f"jax 0.10.{me}"):
        refused(lambda: compiled()(w, batch), "the versions:", "process 0: jax 0.10.0", "process 1: jax 0.10.1")
    with mock.patch.object(several_processes, "Counter", lambda numbers: Counter([*numbers, *[1] * me])):
        refused(
            lambda: compiled()(w, batch),
            "the devices of each process:",
            "process 0: process 1 has ",
            "process 1: process 1 has ",
        )
    larger = {name: np.concatenate([value] * (1 + me)) for name, value in batch.items()}
    refused(
        lambda: compiled()(w, larger), "the arguments:", "process 0: batch['x']: float32[8,4]", "batch['x']: float32[16"
    )
    own = {name: value + np.float32(me) for name, value in batch.items()}
    said = (
        "how the arguments are given:",
        "batch['x']: a value that each process has, a NumPy array, checksum",
        "must be equal",
    )
    refused(lambda: compiled()(w, own), *said, "make_array_from_process_local_data")
    arrays = {name: jnp.asarray(value) for name, value in own.items()}
    refused(lambda: compiled()(w, arrays), "batch['x']: a value that each process has, a jax.Array, checksum")
    key = jax.random.key(me)
    drawn = mm.mjit(lambda w, x, key: in_stages(w, x, 2) + jax.random.normal(key), mesh=mesh)
    refused(lambda: drawn(w, batch["x"], key), "key: a value that each process has, a jax.Array, checksum")
    scaled = mm.mjit(lambda w, x, rate: in_stages(w, x, 2) * rate, mesh=mesh)
    rate = [jnp.float32(2), jnp.asarray(2.0)][me]
    refused(
        lambda: scaled(w, batch["x"], rate),
        "the arguments:",
        "process 1: rate: float32[] of a weak type",
        "rate: float32[]",
    )
    for value in (own["x"], arrays["x"]):
        reads = mm.mjit(lambda w, x, value=value: in_stages(w, x, 2) + value, mesh=mesh)
        refused(lambda reads=reads: reads(w, batch["x"]), "the values of captured arrays:", "process 1: a ", "checksum")
    with jax.default_matmul_precision(["highest", "high"][me]):
        refused(lambda: compiled()(w, batch), "the settings:", "process 1: jax_default_matmul_precision: high\n")
    spread = NamedSharding(Mesh(np.array(jax.devices()), "z"), [P(), P("z")][me])
    laid_out = {name: jax.make_array_from_callback(x.shape, spread, lambda i, x=x: x[i]) for name, x in batch.items()}
    refused(lambda: compiled()(w, laid_out), "batch['x']: one array over {'z': ", "P('z',), on devices [0, 1, ")
    # Later calls of a step are compared where their arguments are given in another way than before.
    step = compiled()
    first_loss, _ = step(w, batch)
    refused(lambda: step(w, laid_out), "how train is called", "one array over")
    # One of them has to compile it once more, and says why; nothing else of the two calls can be compared.
    with jax.default_matmul_precision([None, "highest"][me]):
        said = "process 0: how train is called (not as before in how the arguments are given: now batch['x']: one array"
        more = "process 1: train (not as before in the settings: now jax_default_matmul_precision: highest, then "
        refused(lambda: step(w, [laid_out, batch][me]), said, more, "and with the same static arguments and settings.")
    again, _ = step(w, batch)
    assert float(again) == float(first_loss)
    print("calls", [(each.number, each.label) for each in progress.calls])


def given_away() -> None:
    """A caller may overwrite scalar results at once: what others are still sent, and what the watch asks, stays."""
    me, count = jax.process_index(), jax.process_count()
    mesh = mm.MultiMesh(axis_sizes=(count, len(jax.devices()) // count), axis_names=("stage", "data"))
    x = normal(4, 4, dtype=np.float32)
    for scalars in ([jnp.sum], [jnp.sum, jnp.max]):

        def fun(x, scalars=scalars):
            found = [mm.task(each, task=mm.stage(count - 1, count))(x) for each in scalars]
            return found, mm.task(jnp.negative, task=mm.stage(0, count))(x)

        step = mm.mjit(fun, mesh=mesh)
        for _ in range(3):
            if me < count - 1:
                # The last one has computed, and overwritten what it has, before the others ask for it.
                time.sleep(0.3)
            values, _ = step(x)
            if me < count - 1:
                same_shards(values, [each(x) for each in scalars])
            given = [overwrite(shard.data) for value in values for shard in value.addressable_shards]
            jax.block_until_ready(given)
            assert not any(wait.array.is_deleted() for wait in [*progress.waits, *progress.offers])


def followed() -> None:
    """A step without tasks follows its arguments, whenever they come to lie on several stages, in all processes."""
    every = jax.devices()
    mesh = mm.MultiMesh(axis_sizes=(2, len(every) // 2), axis_names=("stage", "data"))
    host = [normal(4, 4, dtype=np.float32) + k for k in range(2)]
    layouts = [NamedSharding(Mesh(devices, ("data",)), P()) for devices in mesh.mesh.devices]
    placed = [
        jax.make_array_from_callback(value.shape, layout, lambda i, value=value: value[i], dtype=value.dtype)
        for value, layout in zip(host, layouts, strict=True)
    ]

    def scaled(tree):
        return [x * 2 for x in tree]

    step = mm.mjit(scaled, mesh=mesh)
    for _ in range(2):
        assert all(len(each.sharding.device_set) == len(every) for each in step(host))
    for tree in (placed, host, placed):
        results = step(tree)
        assert [each.sharding.device_set for each in results] == [layout.device_set for layout in layouts]
        same_shards(results, [2 * value for value in host], exact=True)
    assert step.num_plans == 1


def captured() -> None:
    """Arrays of the host that a step captures are as they were when it was planned, in results as well."""
    read, returned = np.ones((4, 4), np.float32), np.ones((4, 4), np.float32)
    mesh = mm.MultiMesh(axis_sizes=(2, len(jax.devices()) // 2), axis_names=("stage", "data"))
    x = normal(4, 4, dtype=np.float32)

    def fun(x):
        y = mm.task(jnp.multiply, task=mm.stage(0, 2))(x, read)
        return mm.task(jnp.negative, task=mm.stage(1, 2))(y), returned

    step = mm.mjit(fun, mesh=mesh)
    step.plan(x)
    for _ in range(2):
        read *= 3
        returned *= 3
        same_shards(step(x), [-x, np.ones((4, 4), np.float32)], exact=True)


def alone() -> None:
    """Steps on devices of this process alone, which others need not call; and a step that is one program on all."""
    me = jax.process_index()
    here = mm.MultiMesh(axis_sizes=(2,), axis_names=("stage",), devices=jax.local_devices())
    w, batch = weights(2), batches(1)[0]

    def step(params, batch):
        return jax.value_and_grad(lambda params: squares(in_stages(params, batch["x"], 2), batch["y"]))(params)

    compiled = mm.mjit(step, mesh=here)
    for _ in range(1 + me):
        loss, grads = compiled(w, batch)
    np.testing.assert_allclose(float(loss), float(jax.jit(step)(w, batch)[0]), rtol=1e-5)
    assert [{device.process_index for device in grad.devices()} for grad in grads] == [{me}, {me}]

    everywhere = mm.MultiMesh(axis_sizes=(len(jax.devices()),), axis_names=("stage",))
    whole = mm.mjit(lambda w, x: ((x @ w) ** 2).sum(), mesh=everywhere)
    for _ in range(3):
        total = whole(w[0], batch["x"])
    np.testing.assert_allclose(float(total), float(((batch["x"] @ w[0]) ** 2).sum()), rtol=1e-5)
    # A process may have traced more than others, and a step is the same all the same.
    if me == 0:
        jax.make_jaxpr(mm.task(jnp.sin, task=mm.Task(name="traced alone", mesh_slice={"stage": 0})))(1.0)
    last = mm.Task(name="traced by all", mesh_slice={"stage": len(jax.devices()) - 1})
    doubled = mm.mjit(lambda x: mm.task(lambda x: 2 * x, task=last)((x * x).sum()), mesh=everywhere)(w[0])
    np.testing.assert_allclose(float(doubled), 2 * float((w[0] ** 2).sum()), rtol=1e-5)
    # A mesh that this process has no device of: nothing runs, and what comes out is elsewhere.
    first = mm.MultiMesh(axis_sizes=(2,), axis_names=("stage",), devices=jax.devices()[:2])
    loss, grads = mm.mjit(step, mesh=first)(w, batch)
    assert len(loss.addressable_shards) == (2 if me == 0 else 0)

    def scaled(x, w):
        return jax.lax.psum(w * x, "i"), jax.lax.axis_index("i"), w

    mapped = mm.compat.pmap(scaled, "i", in_axes=(0, None), out_axes=(0, 0, None))
    total, index, weight = mapped(np.arange(2.0, dtype=np.float32) + 2 * me, np.float32(2))
    total, index, weight = mapped(total, weight + 1)
    assert total.tolist() == [144, 144]
    assert index.tolist() == [2 * me, 2 * me + 1]
    refused(lambda: mapped(np.arange(1.0, dtype=np.float32), np.float32(1)), "one row for every device of its own")


def several(*calls: str) -> None:
    """Several checks in one job, each as `name` or `name=argument=argument`: a start takes longer than most of them."""
    for call in calls:
        name, *arguments = call.split("=")
        print(f"--- {call}", flush=True)
        globals()[name](*arguments)


def transports(*names: str) -> None:
    """The same values and the same training, whatever carries arrays."""
    for name in names:
        os.environ["MMRUNTIME_TRANSPORT"] = name
        kinds()
        trained(mm.MultiMesh(axis_sizes=(2, 2), axis_names=("stage", "data")), "1f1b")
    os.environ.pop("MMRUNTIME_TRANSPORT")


def crossings(count: str = "40", *names: str) -> None:
    """Arrays of random shapes and types get from any layout on any devices to any other, by every transport.

    Some are sent as they are, as nobody overwrites them; some tell by themselves that they have come.
    """
    rng = random.Random(0)
    me, every = jax.process_index(), jax.devices()
    undivided: Counter[str] = Counter()
    dtypes = [np.float32, np.float16, np.int8, np.bool_, np.uint32, np.complex64]
    dtypes += [jnp.bfloat16, jnp.float8_e4m3fn, jnp.int4, jnp.uint4]
    for number in range(int(count)):
        channel = channels.channel((names or NAMES)[number % len(names or NAMES)])
        sources, targets, values = [], [], []
        alike = rng.random() < 0.3
        ends = [_random_mesh(rng, every) for _ in range(2)] if not alike else _alike_meshes(rng, every)
        for _ in range(rng.randrange(1, 4)):
            shape = tuple(rng.choice([0, 4, 4, 8]) for _ in range(rng.randrange(4)))
            whole = np.random.default_rng(number).normal(size=shape) * 4
            values.append(np.asarray(whole, rng.choice(dtypes)))
            for found, mesh in zip((sources, targets), ends, strict=True):
                if alike and found is targets:
                    found.append(NamedSharding(mesh, sources[-1].spec))
                    continue
                axes = rng.sample(mesh.axis_names, len(mesh.axis_names))
                spec = []
                for size in shape:
                    cut = axes and size % mesh.shape[axes[-1]] == 0 and rng.random() < 0.5
                    spec.append(axes.pop() if cut else None)
                found.append(NamedSharding(mesh, P(*spec)))
        avals = [jax.ShapeDtypeStruct(value.shape, value.dtype) for value in values]
        stays = [[rng.random() < 0.5 for _ in values] for _ in range(2)]
        crossing = Crossing(sources, targets, avals, channel, me, intact=stays[0], kept=stays[1])
        channel.connect(crossing.peers)
        undivided[channel.name] += sum(position is None for _, _, position in crossing._whole)
        arrays = [
            jax.make_array_from_callback(value.shape, sharding, lambda i, value=value: value[i], dtype=value.dtype)
            for value, sharding in zip(values, sources, strict=True)
        ]
        for attempt in range(2):
            moved = crossing(arrays, (1 << 20) * number + attempt)
            # What may be overwritten is, while it is on its way; arrays of devices at both ends may share memory.
            disjoint = not set(ends[0].devices.flat) & set(ends[1].devices.flat)
            for array, stay in zip(arrays, stays[0], strict=True):
                if attempt and disjoint and not stay and array.size:
                    jax.block_until_ready([overwrite(shard.data) for shard in array.addressable_shards])
            assert len(crossing.tickets) == len(crossing.senders)
            jax.block_until_ready(crossing.tickets)
            for value, sharding, array in zip(values, targets, moved, strict=True):
                here = me in {device.process_index for device in sharding.mesh.devices.flat}
                assert (array is not None) == here
                for shard in array.addressable_shards if here else ():
                    assert shard.data.dtype == value.dtype
                    np.testing.assert_array_equal(np.asarray(shard.data), value[shard.index], str((number, sharding)))
    # Other transports carry what is on one device.
    assert set(+undivided) <= {"transfer"}
    sent = jax.experimental.multihost_utils.process_allgather(np.int32(undivided["transfer"])).sum()
    assert sent > 0 or "transfer" not in (names or NAMES)


def _alike_meshes(rng, every):
    """Two meshes of one shape, each within a process if there are several, so that arrays may go undivided."""
    processes = [[each for each in every if each.process_index == number] for number in range(jax.process_count())]
    chosen = rng.sample(processes, 2) if len(processes) > 1 else processes * 2
    size = rng.choice([size for size in (1, 2, 4) if size <= len(chosen[0])])
    rows = rng.choice([rows for rows in (1, 2, 4) if size % rows == 0])
    return [Mesh(np.array(rng.sample(found, size)).reshape(rows, -1), ("a", "b")) for found in chosen]


@functools.partial(jax.jit, donate_argnums=0)
def overwrite(array):
    return ~array if array.dtype == np.bool_ else -array


def _random_mesh(rng, every):
    chosen = rng.sample(every, rng.choice([1, 2, 4] if len(every) < 8 else [1, 2, 4, 8]))
    rows = rng.choice([size for size in (1, 2, 4) if len(chosen) % size == 0])
    return Mesh(np.array(chosen).reshape(rows, -1), ("a", "b"))


def with_transport(name: str, call: str, *arguments: str) -> None:
    """Another check, with a transport."""
    os.environ["MMRUNTIME_TRANSPORT"] = name
    globals()[call](*arguments)
    del os.environ["MMRUNTIME_TRANSPORT"]


def checkpointed(folder: str) -> None:
    """Arrays of one process, of some and of all are saved from where they lie, and restored there or elsewhere."""
    ocp = importlib.import_module("orbax.checkpoint")
    importlib.import_module("mmruntime.orbax").register()
    every = jax.devices()
    count = len(every)
    meshes = [Mesh(np.array(every[low:high]), ("x",)) for low, high in ((0, 2), (count - 2, count), (1, 3), (0, count))]
    values = {
        "cut": np.arange(24.0, dtype=np.float32).reshape(8, 3),
        "copied": np.arange(5, dtype=np.int32),
        "half": np.asarray(jnp.arange(8, dtype=jnp.bfloat16)),
        "scalar": np.float32(7),
    }
    layouts = {"cut": P("x"), "copied": P(), "half": P("x"), "scalar": P()}

    def tree_on(turn: int, make):
        return {
            f"{name}{at}": make(value, NamedSharding(meshes[(at + turn) % len(meshes)], layouts[name]))
            for name, value in values.items()
            for at in range(len(meshes))
        }

    def laid_out(value, sharding):
        return jax.make_array_from_callback(value.shape, sharding, lambda i: value[i], dtype=value.dtype)

    with ocp.CheckpointManager(folder) as manager:
        saved = tree_on(0, laid_out)
        manager.save(1, args=ocp.args.StandardSave(saved))
        # What is written later is what was there at the call.
        for array in jax.tree.leaves(saved):
            array.delete()
        manager.wait_until_finished()
        for turn in range(2):
            like = tree_on(turn, lambda value, layout: jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=layout))
            found = manager.restore(1, args=ocp.args.StandardRestore(like))
            same_shards(found, tree_on(0, lambda value, _: value), exact=True)
            assert all(found[name].sharding == like[name].sharding for name in like)
        keys = {"key": jax.make_array_from_callback((), NamedSharding(meshes[3], P()), lambda _: jax.random.key(0))}
        with pytest.raises(ValueError, match=r"orbax: key is an array of typed PRNG keys.* Save jax.random.key_data"):
            manager.save(2, args=ocp.args.StandardSave(keys))
        everybody = group_of(tuple(range(jax.process_count())))
        if jax.process_index() == 0:
            everybody.called(b"what the others have left out")
        with pytest.raises(
            RuntimeError, match=r"saving a checkpoint[^$]*before:\n    process 0: (\d+)\n    process 1: "
        ):
            manager.save(3, args=ocp.args.StandardSave(tree_on(0, laid_out)))
        if jax.process_index() > 0:
            everybody.called(b"what the others have left out")


def eager_tasks() -> None:
    """Outside of a step a task runs on devices of this process, and says so where it has others."""
    me = jax.process_index()
    with mm.MultiMesh(axis_sizes=(2, 2), axis_names=("stage", "data")):
        for stage in range(2):
            call = mm.task(jnp.cos, task=mm.Task(name="cosine", mesh_slice={"stage": stage}))
            if stage == me:
                assert call(jnp.zeros(2, jnp.float32)).tolist() == [1, 1]
            else:
                text = f"Task 'cosine' runs on devices of process {stage}, and this is process {me}"
                refused(lambda call=call: call(jnp.zeros(2, jnp.float32)), text, "mm.mjit")


def other_entries() -> None:
    """`parallelize`, `parallelize_step` with a batch of each process, and registered tasks."""
    import optax
    from flax import linen as nn

    me, count = jax.process_index(), jax.process_count()
    x = normal(8, 4, dtype=np.float32)

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            for index in range(2):
                x = jnp.tanh(nn.Dense(4, name=f"layer_{index}")(x))
            return (x**2).mean()

    mm.clear_tasks()
    for index in range(2):
        mm.register_task(f"layer_{index}", task=mm.Task(mesh_slice={"stage": index}))
    mesh = mm.MultiMesh(axis_sizes=(2, len(jax.devices()) // 2), axis_names=("stage", "data"))
    local = x[me * 8 // count : (me + 1) * 8 // count]
    step, state, _, prepare = mm.flax.parallelize_step(Model(), optax.sgd(0.1), mesh, local_batch=local)
    batch = prepare(local)
    np.testing.assert_array_equal(mm.gather(batch), x)
    plain = jax.jit(Model().init)(jax.random.key(42), x)
    same_shards(state.params, plain, exact=True)
    losses = []
    for _ in range(3):
        loss, state = step(state, batch)
        losses.append(float(loss))
    np.testing.assert_allclose(losses[0], float(Model().apply(plain, x)), rtol=1e-5)
    assert losses[2] < losses[0]
    # A batch that every process has whole.
    same, state, _ = mm.flax.parallelize_step(Model(), optax.sgd(0.1), mesh, global_batch=x)
    for loss in losses:
        found, state = same(state, x)
        assert float(found) == loss
    # The rows of all processes, in their order, however the mesh has their devices: along its last axis, or backwards.
    grid = np.array(jax.devices()).reshape(-1, 2)
    for each in (grid.T, grid[::-1]):
        turned = mm.MultiMesh(axis_sizes=each.shape, axis_names=("stage", "data"), devices=each.ravel())
        step, state, _, prepare = mm.flax.parallelize_step(Model(), optax.sgd(0.1), turned, local_batch=local)
        batch = prepare(local)
        np.testing.assert_array_equal(mm.gather(batch), x)
        np.testing.assert_allclose(float(step(state, batch)[0]), losses[0], rtol=1e-5)
    mm.clear_tasks()

    w = weights(2)
    run, init = mm.parallelize(
        lambda params, x: in_stages(params, x, 2).sum(),
        lambda: [jnp.asarray(each) for each in w],
        initial_batch=x,
        mesh=mesh,
    )
    params = init()
    assert [len(each.addressable_shards) > 0 for each in params] == [me < count // 2, me >= count // 2]
    np.testing.assert_allclose(float(run(params, x)), float(plain_chain(w, x).sum()), rtol=1e-5)


def invalid() -> None:
    """Under `jax_debug_nans` every process raises the same error, with the line, whichever of them has made the nan."""
    mesh = mm.MultiMesh(axis_sizes=(2,), axis_names=("stage",), devices=[jax.devices()[0], jax.devices()[-1]])

    def log(w, x):
        return jnp.log(x @ w + 6)

    def step(params, x):
        def loss(params, x):
            for stage, w in enumerate(params):
                x = mm.task(log, task=mm.stage(stage, 2, axis="stage"))(w, x)
            return (x**2).mean()

        return mm.microbatch(jax.value_and_grad(loss), size=2, argnum=1, reduce="exact")(params, x)[1]

    def elsewhere(params, x):
        """The first stage makes what only the second one has in its results."""
        (first, second) = params
        x = mm.task(log, task=mm.stage(0, 2, axis="stage"))(first, x)
        return mm.task(lambda w, x: x @ w, task=mm.stage(1, 2, axis="stage"))(second, x)

    x = np.ones((8, 2), np.float32)
    x[5] = 2
    good, bad = [[np.ones((2, 2), np.float32), np.full((2, 2), last, np.float32)] for last in (0.1, -1.35)]
    for function, params, task in ((step, bad, 1), (elsewhere, [-9 * each for each in good], 0)):
        compiled = mm.mjit(function, mesh=mesh)
        compiled(params, x)
        for _ in range(2):
            with jax.debug_nans(True):
                compiled(good, x)
                with pytest.raises(FloatingPointError, match=rf"in log at .*checks.py:\d+ .*in task 'stage_{task}'"):
                    compiled(params, x)
        compiled(params, x)
