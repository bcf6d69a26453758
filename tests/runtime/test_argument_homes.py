"""Steps without tasks follow their arguments: an optimizer's update that is compiled apart stays on the stages."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import mmruntime as mm
from tests.runtime.helpers import ids

WIDTH = 32


@pytest.fixture
def mesh():
    return mm.MultiMesh(axis_sizes=(4, 2), axis_names=("stage", "data"))


def layer(weights, x):
    return jnp.tanh(x @ weights["kernel"] + weights["bias"][None])


def loss(params, x):
    for index, weights in enumerate(params):
        x = mm.task(layer, task=mm.Task(name=f"layer_{index}", mesh_slice={"stage": index}))(weights, x)
    return jnp.mean(x * x)


def params():
    keys = jax.random.split(jax.random.key(0), 4)
    return [{"kernel": jax.random.normal(key, (WIDTH, WIDTH)) / 5, "bias": jnp.ones(WIDTH)} for key in keys]


BATCH = np.random.default_rng(0).normal(size=(16, WIDTH)).astype(np.float32)
STAGES = [{0, 1}, {2, 3}, {4, 5}, {6, 7}]


def on_stages(tree):
    """A list of trees, whole on one stage each."""
    meshes = [mm.MultiMesh(axis_sizes=(4, 2), axis_names=("stage", "data")).mesh.devices[k] for k in range(4)]
    layouts = [NamedSharding(jax.sharding.Mesh(devices, ("data",)), PartitionSpec()) for devices in meshes]
    return [jax.device_put(each, layout) for each, layout in zip(tree, layouts, strict=True)]


def assert_on_stages(tree):
    for each, devices in zip(tree, STAGES, strict=True):
        for leaf in jax.tree.leaves(each):
            assert ids(leaf) == devices


OPTIMIZERS = {
    "adam": optax.adam(1e-2),
    "clipped": optax.chain(optax.clip_by_global_norm(1e-3), optax.adamw(1e-2)),
    "lamb": optax.lamb(1e-2),
    "finite": optax.apply_if_finite(optax.adam(1e-2), 3),
    "every second": optax.MultiSteps(optax.adam(1e-2), 2),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_an_update_that_is_compiled_apart(mesh, optimizer, free_promotion):
    if isinstance(optimizer, optax.MultiSteps):
        optimizer = optimizer.gradient_transformation()
    gradient, update = mm.mjit(jax.grad(loss), mesh=mesh), mm.mjit(optimizer.update, mesh=mesh, donate_argnums=1)
    plain_gradient, plain_update = jax.jit(jax.grad(loss)), jax.jit(optimizer.update)
    ours = theirs = params()
    state, plain_state = optimizer.init(ours), optimizer.init(theirs)
    for _ in range(3):
        updates, state = update(gradient(ours, BATCH), state, ours)
        ours = optax.apply_updates(ours, updates)
        plain_updates, plain_state = plain_update(plain_gradient(theirs, BATCH), plain_state, theirs)
        theirs = optax.apply_updates(theirs, plain_updates)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6), (ours, state), (theirs, plain_state)
    )
    assert_on_stages(ours)
    adam = next(each for each in jax.tree.leaves(state, is_leaf=_has_moments) if _has_moments(each))
    assert_on_stages(adam.mu)
    assert_on_stages(adam.nu)
    assert update.num_plans == 1
    assert update.latest_plan.runner.misplaced == 0
    # Only scalars leave their stage: norms, and whether all is finite.
    assert all(transfer.size <= 16 for transfer in update.explain().transfers)


def _has_moments(node):
    return isinstance(node, optax.ScaleByAdamState)


def test_arrays_stay_cut_within_their_stage(mesh):
    layouts = [NamedSharding(jax.sharding.Mesh(mesh.mesh.devices[k], ("data",)), PartitionSpec("data")) for k in (0, 2)]
    first, last = (jax.device_put(jnp.arange(64.0).reshape(8, 8), layout) for layout in layouts)
    step = mm.mjit(lambda a, b: (a * 2, b + 1, a.sum() + b.sum()), mesh=mesh)
    doubled, more, total = step(first, last)
    assert doubled.sharding.is_equivalent_to(layouts[0], 2)
    assert more.sharding.is_equivalent_to(layouts[1], 2)
    assert float(total) == 2 * 64 * 63 / 2
    reasons = {each.name: each.reason.placed_by for each in step.explain().inputs}
    assert set(reasons.values()) == {"the caller, which has it there"}


def test_what_works_on_several_stages_is_right_and_in_one_place(mesh):
    one, two, *_ = on_stages([jnp.arange(12.0).reshape(3, 4) + k for k in range(4)])
    step = mm.mjit(lambda a, b: (a @ b.T, jnp.concatenate([a, b]), a), mesh=mesh)
    product, both, same = step(one, two)
    a, b = np.asarray(one), np.asarray(two)
    np.testing.assert_array_equal(product, a @ b.T)
    np.testing.assert_array_equal(both, np.concatenate([a, b]))
    assert ids(same) == {0, 1}
    assert ids(both) in STAGES


def test_what_no_equation_reads_stays_where_it_is(mesh):
    one, two, three, four = on_stages([jnp.arange(12.0).reshape(3, 4)] * 4)
    step = mm.mjit(lambda a, b, returned, unused: (a + 1, b + 1, returned), mesh=mesh)
    *_, returned = step(one, two, three, four)
    assert ids(returned) == STAGES[2]
    assert len(step.latest_plan.placement.followed) == 2


def test_keys_on_several_stages_tell_nothing(mesh):
    first, second, *_ = on_stages([jnp.array([1, 2], "uint32")] * 4)
    step = mm.mjit(lambda first, second, x: (x + 1, first), mesh=mesh)
    assert ids(step(first, second, jnp.ones((4, 4)))[0]) == set(range(8))


@pytest.mark.parametrize("where", ["one stage", "everywhere", "host"])
def test_arguments_in_one_place_are_used_on_all_devices(mesh, where):
    tree = [jnp.ones((4, 4)), jnp.zeros((4, 4))]
    if where == "one stage":
        tree = jax.device_put(tree, NamedSharding(jax.sharding.Mesh(mesh.mesh.devices[1], ("data",)), PartitionSpec()))
    elif where == "everywhere":
        tree = jax.device_put(tree, NamedSharding(mesh.mesh, PartitionSpec("stage")))
    step = mm.mjit(lambda tree: jax.tree.map(lambda x: x + 1, tree), mesh=mesh)
    result = step(tree)
    assert [ids(leaf) for leaf in result] == [set(range(8))] * 2
    assert not step.latest_plan.placement.followed


def test_a_step_with_tasks_does_not_ask_where_its_arguments_lie(mesh):
    ours = params()
    step = mm.mjit(lambda tree, x: loss(tree, x), mesh=mesh)
    backward = on_stages(ours[::-1])[::-1]
    np.testing.assert_allclose(step(backward, BATCH), jax.jit(loss)(ours, BATCH), rtol=1e-6)
    assert [each.submesh for each in step.explain().inputs if "kernel" in each.name] == [0, 1, 2, 3]


def test_a_task_without_a_slice_is_for_the_whole_mesh(mesh):
    one, two, *_ = on_stages([jnp.arange(12.0).reshape(3, 4)] * 4)
    step = mm.mjit(lambda a, b: mm.task(lambda a, b: a + b, task=mm.Task(name="add"))(a, b), mesh=mesh)
    assert ids(step(one, two)) == set(range(8))


def test_a_loop_over_microbatches_is_no_update(mesh):
    ours = on_stages(params())
    value = mm.microbatch(
        jax.value_and_grad(lambda tree, x: jnp.mean(sum(x @ w["kernel"] for w in tree))),
        count=4,
        argnum=1,
        reduce="mean",
    )
    step = mm.mjit(value, mesh=mesh)
    plain = jax.value_and_grad(lambda tree, x: jnp.mean(sum(x @ w["kernel"] for w in tree)))
    found, expected = step(ours, BATCH), plain(params(), BATCH)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), found, expected)
    assert not step.latest_plan.placement.followed


def test_ahead_of_calls_as_in_them(mesh):
    tree = on_stages([jnp.ones((4, 4))] * 4)
    step = mm.mjit(lambda tree: jax.tree.map(lambda x: 2 * x, tree), mesh=mesh)
    structs = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), tree)
    compiled = step.lower(structs).compile()
    assert_on_stages(compiled(tree))


def test_until_they_lie_on_several_stages_arguments_are_asked_at_each_call(mesh):
    host = [np.full((4, 4), k, np.float32) for k in range(4)]
    step = mm.mjit(lambda tree: [x * 2 for x in tree], mesh=mesh)
    for _ in range(3):
        assert [ids(leaf) for leaf in step(host)] == [set(range(8))] * 4
    before = step.latest_plan
    for _ in range(2):
        result = step(on_stages(host))
        assert_on_stages(result)
        assert all(np.array_equal(leaf, 2 * each) for leaf, each in zip(result, host, strict=True))
    assert step.latest_plan is not before
    assert step.num_plans == 1
    assert step.latest_plan.runner.misplaced == 0
    kept = step.latest_plan
    for tree in (host, step(on_stages(host)), host):
        assert_on_stages(step(tree))
    assert step.latest_plan is kept


def test_a_plan_for_shapes_alone_says_nothing_of_where_arguments_lie(mesh):
    tree = on_stages([jnp.ones((4, 4))] * 4)
    step = mm.mjit(lambda tree: [x * 2 for x in tree], mesh=mesh, donate_argnums=0)
    step.plan([jax.ShapeDtypeStruct(x.shape, x.dtype) for x in tree])
    assert_on_stages(step(tree))
    assert step.latest_plan.runner.misplaced == 0


def test_without_the_fast_path_arguments_are_asked_as_well(mesh):
    step = mm.mjit(lambda tree: [x * 2 for x in tree], mesh=mesh)
    host = [np.ones((4, 4), np.float32)] * 4
    with mm.enable_fast_path(False):
        for _ in range(2):
            step(host)
        assert_on_stages(step(on_stages(host)))


def test_a_step_with_tasks_is_planned_once_wherever_its_arguments_lie(mesh):
    step = mm.mjit(loss, mesh=mesh)
    step(params(), BATCH)
    plan = step.latest_plan
    step(on_stages(params()[::-1])[::-1], BATCH)
    assert step.latest_plan is plan


def test_a_step_that_was_compiled_for_shapes_says_that_it_copies_what_lies_on_several_stages(mesh):
    host = [np.full((4, 4), k, np.float32) for k in range(4)]
    step = mm.mjit(lambda tree: [x * 2 for x in tree], mesh=mesh)
    compiled = step.lower([jax.typeof(x) for x in on_stages(host)]).compile()
    compiled(host)
    with pytest.warns(UserWarning, match="compiled for arguments in one place, and gives every device a copy"):
        result = compiled(on_stages(host))
    assert all(np.array_equal(each, 2 * x) for each, x in zip(result, host, strict=True))
    # Once is enough.
    compiled(on_stages(host))


def test_captured_arrays_of_several_stages_are_copied_with_a_warning(mesh):
    tree = on_stages([jnp.ones((4, 4))] * 4)
    step = mm.mjit(lambda y: [x * y for x in tree], mesh=mesh)
    with pytest.warns(UserWarning, match=r"several stages: (a captured float32\[4,4\][,.] ){4}.*pass captured"):
        assert [ids(leaf) for leaf in step(2.0)] == [set(range(8))] * 4
    step(3.0)


def test_arguments_on_single_devices_are_copied_with_a_warning(mesh):
    step = mm.mjit(lambda a, b: a + b, mesh=mesh)
    one, two = (jax.device_put(jnp.ones((4, 4)), device) for device in jax.devices()[:2])
    with pytest.warns(UserWarning, match="several stages: a, b. "):
        assert ids(step(one, two)) == set(range(8))
    mm.mjit(lambda a, b: a - b, mesh=mesh)(jnp.ones((4, 4)), two)


@pytest.mark.parametrize("fast", [True, False])
def test_arguments_that_first_lie_on_single_devices_in_a_later_call_are_copied_with_a_warning(mesh, fast):
    step = mm.mjit(lambda a, b: a + b, mesh=mesh)
    one, two, three = (jax.device_put(jnp.ones((4, 4)), device) for device in jax.devices()[:3])
    with mm.enable_fast_path(fast):
        for _ in range(3):
            step(np.ones((4, 4), np.float32), jnp.ones((4, 4)))
        step(one, one)
        step(np.ones((4, 4), np.float32), two)
        step(jnp.ones((4, 4)), two)
        with pytest.warns(UserWarning, match="several stages: a, b. "):
            assert ids(step(one, two)) == set(range(8))
        # Once is enough for each choice of devices.
        step(two, one)
        step(one, two)
        with pytest.warns(UserWarning, match="several stages: a, b. "):
            step(one, three)
    assert step.num_plans == 1


def test_calls_that_are_repeated_in_c_ask_nothing_of_where_their_arguments_lie(mesh, monkeypatch):
    step = mm.mjit(lambda a, b: (a + b, b), mesh=mesh)
    state = step(jnp.ones((4, 4)), jnp.ones((4, 4)))
    for _ in range(3):
        state = step(*state)
    monkeypatch.setattr(type(step), "_warn_of_copies", lambda *_: pytest.fail("asked"))
    step(*state)


def test_a_watched_step_moves_to_where_its_arguments_lie_as_well(mesh):
    host = [np.ones((4, 4), np.float32)] * 4
    step = mm.mjit(lambda tree: [x * 2 for x in tree], mesh=mesh)
    step(host)
    step.timeline(on_stages(host))
    assert_on_stages(step(host))


def test_a_stack_beside_arrays_of_single_stages_is_donated_as_they_are(mesh):
    """As the state of a model whose layers are stacked, and whose embedding and head are not."""

    def update(stack, ends):
        norm = sum(jnp.vdot(leaf, leaf) for leaf in (stack, *ends))
        return stack / norm, [leaf * 2 + stack[:4].sum() for leaf in ends]

    stack = jax.device_put(jnp.arange(32.0).reshape(8, 4), NamedSharding(mesh.mesh, PartitionSpec("stage")))
    ends = on_stages([jnp.full((4, 4), k + 1.0) for k in range(4)])
    expected = jax.jit(update)(jnp.arange(32.0).reshape(8, 4), [jnp.full((4, 4), k + 1.0) for k in range(4)])
    step = mm.mjit(update, mesh=mesh, donate_argnums=(0, 1))
    found = step(stack, ends)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found, expected)
    assert_on_stages(found[1])
    assert found[0].sharding.is_equivalent_to(stack.sharding, 2)
    assert all(leaf.is_deleted() for leaf in ends)
    apart = mm.mjit(lambda stack, ends: (stack * 2, [leaf * 2 for leaf in ends]), mesh=mesh, donate_argnums=(0, 1))
    state = found
    for _ in range(3):
        before, state = state, apart(*state)
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(before))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, 8 * b, rtol=1e-6), state, expected)
