"""Where everything runs and lives: programs, state, activations, transfers, and what is given up to donation."""

import gc
import weakref
from collections import Counter, defaultdict

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import mmruntime as mm
from mmruntime._partition.pipeline.instructions import RunInstruction, TransferInstruction
from tests.runtime.helpers import (
    SCHEDULES,
    WIDTH,
    adam,
    adam_state,
    assert_close,
    batches,
    devices_of,
    executables,
    ids,
    layer,
    new_objects_alone,
    normal,
    on,
    sgd,
    squares,
    stages,
    train,
    weights,
)

pytestmark = pytest.mark.family

NUM_STAGES = 2
NUM_MICROBATCHES = 8


def loss(params, batch):
    x = batch["x"]
    for index, w in enumerate(params):
        x = mm.task(layer, task=on(index % NUM_STAGES))(w, x)
    return squares(x, batch["y"])


def adam_step(schedule, count=NUM_MICROBATCHES):
    def step(state, batch):
        value, grads = mm.microbatch(jax.value_and_grad(loss), argnum=1, count=count, schedule=schedule)(
            state["params"], batch
        )
        return adam(state, grads), value

    return step


def small(tree):
    """The same arrays in float32."""
    return jax.tree.map(lambda leaf: leaf.astype(np.float32) if leaf.dtype == np.float64 else leaf, tree)


@pytest.fixture(scope="module")
def trained():
    """A step of two devices per stage after two calls, for each schedule."""
    done = {}

    def run(schedule):
        if schedule not in done:
            step = mm.mjit(adam_step(schedule), mesh=stages(NUM_STAGES, data=2), donate_argnums=0)
            state = small(adam_state(weights(NUM_STAGES)))
            for batch in small(batches(2, examples=16)):
                state, value = step(state, batch)
            done[schedule] = (step, state, value)
        return done[schedule]

    return run


def slots_over_time(program):
    """Every instruction with the slots that are alive while it runs."""
    alive = {place[0] for place in program.inputs if place is not None}
    alive |= {slot for places in program.constants.values() for slot, _ in places}
    made = {slot for item in program.instructions for slot in item.results}
    alive |= {slot for places in program.scalars.values() for slot, _ in places} - made
    alive |= {slot for slot, _, _ in program.numbers}
    for item in program.instructions:
        assert set(item.args) <= alive, "reads what is not there"
        alive |= set(item.results)
        yield item, frozenset(alive)
        assert set(item.frees) <= alive, "frees what is not there"
        alive -= set(item.frees)
    kept = {slot for slot in program.outputs if slot is not None}
    assert alive >= kept
    leftover = {slot for slot in alive - kept if program.keys[slot][2] is not None}
    assert not leftover, "keeps values of a microbatch after the step"


# Programs.


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_program_is_compiled_for_one_stage(trained, schedule):
    step, _, _ = trained(schedule)
    seen = defaultdict(int)
    for spec, executable in executables(step):
        devices = devices_of(executable) or {2 * spec.submesh, 2 * spec.submesh + 1}
        assert devices == {2 * spec.submesh, 2 * spec.submesh + 1}, spec.kind
        seen[spec.submesh] += 1
    # Each stage has a forward and a backward program, or one that does both, and those around the loop.
    assert sorted(seen) == list(range(NUM_STAGES))
    rows = step.explain().programs
    for stage in range(NUM_STAGES):
        kinds = {row.kind for row in rows if row.submesh == stage and row.runs == NUM_MICROBATCHES}
        assert kinds in ({"forward", "backward"}, {"forward+backward"}), (stage, kinds)
        tasks = {task for row in rows if row.submesh == stage for task in row.tasks}
        assert tasks == {f"stage_{stage}"}


def test_a_program_holds_the_work_of_its_stage_only(trained):
    """Matrix products: two per layer and microbatch forward and backward, three in all, on each stage alike."""
    step, _, _ = trained("1f1b")
    work = Counter()
    for row in step.explain().programs:
        if row.runs == NUM_MICROBATCHES:
            work[row.submesh] += row.flops
    product = 2 * (16 // NUM_MICROBATCHES) * WIDTH * WIDTH
    for stage in range(NUM_STAGES):
        # The first layer's input needs no gradient.
        assert (2 if stage == 0 else 3) * product <= work[stage] <= 5 * product


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_state_lives_with_its_parameter_and_stays(trained, schedule):
    step, state, value = trained(schedule)
    for part in ("params", "mu", "nu"):
        for stage, array in enumerate(state[part]):
            assert ids(array) == {2 * stage, 2 * stage + 1}, (part, stage)
    assert step.latest_plan.runner.misplaced == 2, "only the batch was moved"
    assert step.num_plans == 1
    assert float(value) > 0
    for part in ("params", "mu", "nu"):
        for array in state[part]:
            jax.debug.visualize_array_sharding(array)


def test_carried_state_has_the_layout_of_the_input(trained):
    step, state, _ = trained("1f1b")
    plan = step.latest_plan
    leaves = jax.tree.leaves(state)
    assert sorted(plan.step.carried) == list(range(len(leaves)))
    for position, result in plan.step.carried.items():
        place = plan.program.inputs[position]
        assert place is not None
        if leaves[result].ndim == 0:
            assert leaves[result].sharding == plan.shardings.everywhere
        else:
            assert leaves[result].sharding == plan.shardings[plan.step.invars[position], place[1]]


# Transfers.


def test_what_moves_between_stages(trained):
    step, _, _ = trained("1f1b")
    per_microbatch = [row for row in step.explain().transfers if row.runs == NUM_MICROBATCHES]
    forward = [(row.source, row.target, row.arrays) for row in per_microbatch if row.target > row.source]
    backward = [(row.source, row.target, row.arrays) for row in per_microbatch if row.target < row.source]
    assert sorted(forward) == [(k, k + 1, 1) for k in range(NUM_STAGES - 1)]
    assert sorted(backward) == [(k + 1, k, 1) for k in range(NUM_STAGES - 1)]
    # Once per step, at most the step counter goes around.
    for row in step.explain().transfers:
        assert row.runs == NUM_MICROBATCHES or row.size <= 16, row


def test_inputs_that_no_microbatch_changes_are_sent_once():
    def step(params, batch):
        def shared_loss(params, batch):
            x = batch["x"]
            for index in range(3):
                x = mm.task(lambda v, w, x: layer(v, layer(w, x)), task=on(index))(params["v"], params["w"][index], x)
            return squares(x, batch["y"])

        value, grads = mm.microbatch(jax.value_and_grad(shared_loss), argnum=1, count=4, schedule="1f1b")(params, batch)
        return sgd(params, grads), value

    mesh = stages(3)
    compiled, params = train(step, mesh, small({"v": weights(1)[0], "w": weights(4)[1:]}), small(batches(3)), rtol=1e-5)
    plan = compiled.latest_plan
    runs = Counter()
    for item in plan.program.instructions:
        if isinstance(item, TransferInstruction):
            for var in item.values:
                runs[(var, item.source, item.target)] += 1
                if var.aval.shape == (WIDTH, WIDTH):
                    # The shared weight and the partial sums of its gradient.
                    assert item.microbatch is None
    assert max(runs.values()) == 4
    weight_moves = Counter(
        (source, target)
        for (var, source, target), n in runs.items()
        if var.aval.shape == (WIDTH, WIDTH)
        for _ in range(n)
    )
    assert weight_moves.total() == 4, weight_moves
    # It has one home, where it is updated.
    assert len(ids(params["v"])) == 1


def test_scalars_of_a_global_norm_are_all_that_crosses():
    def step(params, batch):
        value, grads = mm.microbatch(jax.value_and_grad(loss), argnum=1, count=2, schedule="1f1b")(params, batch)
        norm = jnp.sqrt(sum((g**2).sum() for g in grads))
        scale = jnp.minimum(1.0, 0.1 / norm)
        return sgd(params, [g * scale for g in grads]), value

    # Two layers on each stage: their norms are added up at home first.
    compiled = mm.mjit(step, mesh=stages(NUM_STAGES))
    rows = compiled.plan(small(weights(2 * NUM_STAGES)), small(batches(1)[0])).transfers
    once = [row for row in rows if row.runs == 1]
    assert all(row.size <= 8 for row in once), once
    assert sum(row.arrays for row in once) <= 2 * (NUM_STAGES - 1) + 1, once


def test_a_norm_may_have_more_terms_than_python_recurses():
    def step(params, batch):
        value, grads = mm.microbatch(jax.value_and_grad(loss), argnum=1, count=2, schedule="1f1b")(params, batch)
        norm = jnp.sqrt(sum((g[0, 0] * number) ** 2 for g in grads for number in range(600)))
        return sgd(params, [g / norm for g in grads]), value

    compiled = mm.mjit(step, mesh=stages(NUM_STAGES))
    rows = compiled.plan(small(weights(NUM_STAGES)), small(batches(1)[0])).transfers
    once = [row for row in rows if row.runs == 1]
    assert sum(row.arrays for row in once) <= 2 * (NUM_STAGES - 1) + 1, once


# Memory.


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_activations_are_forgotten_at_their_last_use(trained, schedule):
    step, _, _ = trained(schedule)
    program = step.latest_plan.program
    peak = Counter()
    last_read = {}
    for index, item in enumerate(program.instructions):
        for slot in item.args:
            last_read[slot] = index
    for index, (item, alive) in enumerate(slots_over_time(program)):
        kept = {slot for slot in program.outputs if slot is not None}
        kept |= {slot for atom in step.latest_plan.step.outvars for slot, _ in program.scalars.get(atom, ())}
        for slot in item.args:
            if last_read[slot] == index and slot not in kept:
                assert slot in item.frees
        held = defaultdict(set)
        for slot in alive:
            _, where, microbatch = program.keys[slot]
            # A microbatch's number is no activation.
            if microbatch is not None and slot not in {slot for slot, _, _ in program.numbers}:
                held[where].add(microbatch)
        for where, microbatches in held.items():
            peak[where] = max(peak[where], len(microbatches))
    (loop,) = step.explain().loops
    for stage in range(NUM_STAGES):
        bound = {"gpipe": NUM_MICROBATCHES, "1f1b": NUM_STAGES - stage, "wavefront": 2 * (NUM_STAGES - stage) - 1}
        # What the stage before has done may have arrived, and waits.
        before = {"gpipe": 0, "1f1b": 1, "wavefront": 2}[schedule]
        assert peak[stage] <= bound[schedule] + before, (stage, peak)
        assert loop.live[stage] <= bound[schedule]


def test_no_two_writers_of_a_slot_are_alive_at_once(trained):
    for schedule in SCHEDULES:
        program = trained(schedule)[0].latest_plan.program
        alive = set()
        for item in program.instructions:
            sums = set(item.args) & set(item.results)
            assert not (set(item.results) - sums) & alive
            alive |= set(item.results)
            alive -= set(item.frees)


def test_sums_are_updated_in_place(trained):
    step, _, _ = trained("1f1b")
    compiled = step.latest_plan.compiled
    for spec, executable in executables(step):
        if spec.kind == "segment" and spec.sums:
            assert set(compiled.donated[spec]) >= set(range(len(spec.sums)))
            analysis = executable.memory_analysis()
            size = sum(int(np.prod(total.aval.shape)) * 4 for total, _ in spec.sums)
            assert analysis.alias_size_in_bytes >= size


def test_nothing_that_will_be_read_is_donated(trained):
    for schedule in SCHEDULES:
        plan = trained(schedule)[0].latest_plan
        for item in plan.program.instructions:
            if not isinstance(item, RunInstruction):
                continue
            for position in plan.compiled.donated[item.spec]:
                slot = item.args[position]
                assert slot in item.frees or slot in item.results
                assert item.args.count(slot) == 1


@new_objects_alone()
def test_intermediate_arrays_do_not_outlive_the_call():
    step = mm.mjit(adam_step("1f1b", count=4), mesh=stages(NUM_STAGES))
    state, batch = small(adam_state(weights(NUM_STAGES))), small(batches(1)[0])
    state, _ = step(state, batch)
    state, value = step(state, batch)
    jax.block_until_ready((state, value))
    del value
    gc.collect()
    before = len(jax.live_arrays())
    for _ in range(3):
        state, value = step(state, batch)
    del value
    gc.collect()
    assert len(jax.live_arrays()) <= before


# Donation.


def test_what_is_not_donated_stays_usable():
    step = mm.mjit(adam_step("1f1b", count=4), mesh=stages(NUM_STAGES))
    batch = jax.tree.map(jnp.asarray, small(batches(1)[0]))
    state, _ = step(small(adam_state(weights(NUM_STAGES))), batch)
    copy = jax.tree.map(np.asarray, state)
    first, _ = step(state, batch)
    second, _ = step(state, batch)
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves((state, batch)))
    assert_close(state, jax.tree.map(jnp.asarray, copy), 0)
    assert_close(first, second, 0)


def test_donated_state_in_place_is_taken_and_the_batch_is_not():
    step = mm.mjit(adam_step("1f1b", count=4), mesh=stages(NUM_STAGES), donate_argnums=0)
    batch = jax.tree.map(jnp.asarray, small(batches(1)[0]))
    state, _ = step(small(adam_state(weights(NUM_STAGES))), batch)
    pointers = {array.unsafe_buffer_pointer() for part in ("params", "mu", "nu") for array in state[part]}
    new, _ = step(state, batch)
    for part in ("params", "mu", "nu"):
        assert all(array.is_deleted() for array in state[part]), part
        assert {array.unsafe_buffer_pointer() for array in new[part]} <= pointers, "updated in place"
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(batch))


def test_first_call_keeps_what_the_user_did_not_donate_wherever_it_was():
    """`device_put` to where an array already is gives the user's own buffer."""
    step = mm.mjit(adam_step("1f1b", count=4), mesh=stages(NUM_STAGES))
    state = jax.tree.map(jnp.asarray, small(adam_state(weights(NUM_STAGES))))
    copy = jax.tree.map(np.asarray, state)
    step(state, small(batches(1)[0]))
    assert_close(state, jax.tree.map(jnp.asarray, copy), 0)


def test_first_call_deletes_what_the_user_donated_wherever_it_was():
    """As `jax.jit` does: later calls find it in place and take it, so the first must not leave it usable."""
    batch = small(batches(1)[0])
    for compiled in (
        mm.mjit(adam_step("1f1b", count=4), mesh=stages(NUM_STAGES), donate_argnums=0),
        jax.jit(adam_step("1f1b", count=4), donate_argnums=0),
    ):
        state = jax.tree.map(jnp.array, small(adam_state(weights(NUM_STAGES))))
        expected = jax.jit(adam_step("1f1b", count=4))(state, batch)
        assert_close(compiled(state, batch), expected, 1e-4)
        for part in ("params", "mu", "nu"):
            assert all(array.is_deleted() for array in state[part]), part
    # One program; the copy on the first device may be the caller's own memory.
    w = jnp.arange(4.0)
    found = mm.mjit(lambda w: (w * 2, w.sum()), mesh=stages(2), donate_argnums=0)(w)
    assert w.is_deleted()
    assert_close(found, (jnp.arange(4.0) * 2, jnp.asarray(6.0)), 0)


def test_a_moved_array_is_kept_while_it_is_needed():
    def fun(used, larger, twice, again, through):
        x = mm.task(lambda a, b: a + b.sum(0), task=on(0))(used, larger)
        return mm.task(lambda x, a, b: x * a + b, task=on(1))(x, twice, again), twice * 2, through

    step = mm.mjit(fun, mesh=stages(2), donate_argnums=(0, 1, 2, 4))
    used, larger, twice, through = jnp.arange(4.0), jnp.ones((3, 4)), jnp.full(4, 2.0), jnp.full(4, 5.0)
    expected = jax.jit(fun)(used, larger, twice, twice, through)
    found = step(used, larger, twice, twice, through)
    assert used.is_deleted()
    assert not larger.is_deleted()  # no result has its shape, so jax.jit has no use for it either
    assert not twice.is_deleted()  # the caller kept it by passing it a second time
    assert_close(found, expected, 0)
    assert_close(step(jnp.arange(4.0), larger, twice, twice, found[2]), expected, 0)


def test_submeshes_that_share_devices_never_overwrite_each_other():
    """A copy from a device to itself is no copy, so nothing may be donated along it."""
    wide = mm.TaskMesh(devices=[0, 1], axis_sizes=(2,), axis_names=("x",))
    narrow = mm.TaskMesh(devices=[0], axis_sizes=(1,), axis_names=("x",))
    swapped = mm.TaskMesh(devices=[1, 0], axis_sizes=(2,), axis_names=("x",))

    def step(params, batch):
        def mixed(params, batch):
            x = batch["x"]
            for w, mesh in zip(params, (wide, narrow, swapped, narrow), strict=True):
                x = mm.task(layer, mesh=mesh)(w, x)
            return squares(x, batch["y"])

        value, grads = mm.microbatch(jax.value_and_grad(mixed), argnum=1, count=4, schedule="gpipe")(params, batch)
        return sgd(params, grads), value

    mesh = mm.MultiMesh(axis_sizes=(8,), axis_names=("d",))
    train(step, mesh, small(weights(4)), small(batches(3)), rtol=1e-5, donate_argnums=0)


def test_an_array_that_the_step_captured_is_never_taken():
    table = jax.device_put(jnp.arange(4.0), NamedSharding(stages(2).slice(stage=0), P()))

    def fun(x):
        x = mm.task(lambda x: x + table, task=on(0))(x)
        return mm.task(lambda x: x * table, task=on(1))(x)

    step = mm.mjit(fun, mesh=stages(2), donate_argnums=0)
    for _ in range(3):
        step(np.ones(4))
    assert_close(table, jnp.arange(4.0), 0)


def test_results_are_the_callers_own():
    """A caller may delete what it got without harm to later calls."""

    def fun(x):
        y = mm.task(lambda x: x + 1, task=on(0))(x)
        return y, mm.task(lambda y: y * 2, task=on(1))(y), jnp.ones(3), 5.0

    step = mm.mjit(fun, mesh=stages(2))
    for _ in range(3):
        found = step(np.arange(3.0, dtype=np.float32))
        assert_close(found, jax.jit(fun)(np.arange(3.0, dtype=np.float32)), 0)
        for array in found:
            array.delete()


@new_objects_alone()
def test_a_dropped_step_frees_its_programs():
    step = mm.mjit(lambda x: mm.task(jnp.sin, task=on(0))(x), mesh=stages(2))
    step(np.ones(3))
    plan = weakref.ref(step)
    del step
    gc.collect()
    assert plan() is None


# Calls.


def test_calls_return_before_the_work_is_done(trained):
    """Nothing in the step waits: results may be asked for later, in any order."""
    step, state, _ = trained("1f1b")
    state = jax.tree.map(jnp.copy, state)
    values = []
    for batch in small(batches(3, examples=16)):
        state, value = step(state, batch)
        values.append(value)
    assert sorted(float(value) for value in reversed(values))


def test_scalars_and_counters_can_be_used_anywhere(trained):
    _, state, value = trained("gpipe")
    assert int(state["count"]) == 2
    assert np.isfinite(float(value))
    assert float(jax.jit(lambda v: v * 2)(value)) == 2 * float(value)


def test_parameters_of_one_or_two_numbers_are_where_their_layer_is():
    """A network that narrows and joins again, with a head; small biases and scales are state as well."""

    def dense(params, x):
        return jnp.tanh(x @ params["w"] + params["b"][None]) * params["scale"][None]

    def make(inputs, outputs, seed):
        return {"w": normal(inputs, outputs, seed=seed), "b": normal(outputs), "scale": normal(outputs, seed=seed + 9)}

    def loss(params, batch):
        x, skips = batch["x"], []
        for each in params["down"]:
            x = mm.task(dense, task=on(0))(each, x)
            skips.append(x)
        for each, skip in zip(params["up"], reversed(skips), strict=True):
            x = mm.task(lambda p, x, skip: dense(p, jnp.concatenate([x, skip], -1)), task=on(1))(each, x, skip)
        return squares(dense(params["head"], x * params["norm"][None]), batch["y"])

    def step(state, batch):
        grad = mm.microbatch(jax.value_and_grad(loss), argnum=1, count=2, schedule="1f1b")
        value, grads = grad(state["params"], batch)
        norm = jnp.sqrt(sum((leaf**2).sum() for leaf in jax.tree.leaves(grads)))
        return adam(state, jax.tree.map(lambda leaf: leaf / jnp.maximum(norm, 1), grads)), value

    params = {
        "down": [make(WIDTH, 2, 1), make(2, 1, 2)],
        "up": [make(2, 2, 3), make(4, 1, 4)],
        "norm": normal(1),
        "head": make(1, 1, 5),
    }
    batch = {"x": normal(4, WIDTH), "y": normal(4, 1)}
    state, _ = mm.mjit(step, mesh=stages(2))(adam_state(params), batch)
    for part in ("params", "mu", "nu"):
        at = {name: set().union(*map(ids, jax.tree.leaves(tree))) for name, tree in state[part].items()}
        assert at == {"down": {0}, "up": {1}, "norm": {1}, "head": {1}}
