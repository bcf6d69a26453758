"""Equal programs are built once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import mmruntime as mm
from mmruntime import _compat
from mmruntime._execution.program_cache import KeptPrograms
from mmruntime._jaxpr.canonical_forms import Forms, _Former, form, layout, names_mesh
from tests.runtime.helpers import adam, adam_state, batches, devices_of, layer, on, squares, stages, train, weights

pytestmark = pytest.mark.family


def submesh(first, names=("data",)):
    devices = np.array(jax.devices()[first : first + 2])
    return Mesh(devices.reshape([2, *[1] * (len(names) - 1)]), names)


def form_of(fun, *args, mesh=None):
    return form(jax.make_jaxpr(fun)(*args), mesh or submesh(0))


X = np.ones((4, 4), np.float32)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda x: x * 2.0, lambda x: x * 2.0),
        (lambda x: jax.jit(jnp.sin)(x), lambda x: jax.jit(lambda y: jnp.sin(y))(x)),
        (jax.nn.relu, lambda x: jax.nn.relu(x)),
        (
            lambda x: jax.lax.scan(lambda c, w: (jax.checkpoint(layer)(w, c), None), x, jnp.stack([x, x]))[0],
            lambda x: jax.lax.scan(lambda c, w: (jax.checkpoint(layer)(w, c), None), x, jnp.stack([x, x]))[0],
        ),
        (lambda x: x.at[0, 1].add(1.0), lambda x: x.at[0, 1].add(1.0)),
    ],
)
def test_what_computes_the_same_has_one_form(one, other):
    for pair in ((one, other), (jax.grad(lambda x: one(x).sum()), jax.grad(lambda x: other(x).sum()))):
        first, second = (form_of(fun, X) for fun in pair)
        assert first == second
        assert hash(first) == hash(second)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda x: x * 2.0, lambda x: x * 3.0),
        (lambda x: x * 0.0, lambda x: x * -0.0),
        (lambda x: x - x.T, lambda x: x.T - x),
        (lambda x: (x, x + 1), lambda x: (x + 1, x)),
        (lambda x: x.sum(0), lambda x: x.sum(1)),
        (lambda x: x + np.eye(4, dtype=np.float32), lambda x: x + np.eye(4, dtype=np.float32)[::-1]),
        (lambda x: x.astype(jnp.bfloat16), lambda x: x.astype(jnp.float16)),
        (lambda x: jax.jit(jnp.sin)(x), lambda x: jax.jit(jnp.cos)(x)),
        (lambda x: jnp.dot(x, x), lambda x: jnp.dot(x, x, precision="highest")),
    ],
)
def test_what_computes_something_else_has_another_form(one, other):
    assert form_of(one, X) != form_of(other, X)


def test_devices_are_told_by_their_position_in_the_submesh():
    def constrained(mesh, spec):
        return form_of(lambda x: jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec)), X, mesh=mesh)

    assert constrained(submesh(0), P("data")) == constrained(submesh(2), P("data"))
    assert constrained(submesh(0), P("data")) != constrained(submesh(2), P(None, "data"))
    assert constrained(submesh(0), P("data")) != constrained(submesh(0, ("data", "model")), P("data"))
    reverse = Mesh(submesh(0).devices[::-1], ("data",))
    sharding = NamedSharding(reverse, P("data"))
    assert form_of(lambda x: jax.lax.with_sharding_constraint(x, sharding), X) != constrained(submesh(0), P("data"))
    assert layout(NamedSharding(submesh(0), P("data"))) == layout(NamedSharding(submesh(2), P("data")))


def test_parameters_of_copied_equations_are_looked_at_once(monkeypatch):
    closed = jax.make_jaxpr(lambda x: jax.lax.scan(lambda c, _: (c @ c * 2.0, None), x.T, None, length=3)[0] * 3.0)(X)
    jaxpr, _ = _compat.split(closed)
    copies = [eqn.replace(invars=list(eqn.invars)) for eqn in jaxpr.eqns]
    copy = _compat.close(jaxpr, jaxpr.invars, jaxpr.outvars, copies)
    forms = Forms()
    made = forms.of(closed, submesh(0))
    assert made == form(closed, submesh(0))
    monkeypatch.setattr(_Former, "_value", lambda *_: pytest.fail("they were looked at again"))
    assert forms.of(copy, submesh(0)) is made


def test_forms_of_one_step_are_those_of_programs_that_stand_alone():
    def constrained(mesh):
        sharding = NamedSharding(mesh, P("data"))
        return jax.make_jaxpr(lambda x: jax.lax.with_sharding_constraint(x * 2.0, sharding))(X)

    here, there = constrained(submesh(0)), constrained(submesh(2))
    pairs = [(closed, mesh) for closed in (here, there) for mesh in (submesh(0), submesh(2))]
    forms = Forms()
    shared, alone = [[make(*pair) for pair in pairs] for make in (forms.of, form)]
    assert shared == alone
    # Devices go by position where they are in the mesh: the same constraint is another one elsewhere.
    assert len(set(shared)) == 3
    # A call's name is none of its form; the name of anything else is.
    called = jax.make_jaxpr(jax.jit(jnp.sin))(X)
    jaxpr, _ = _compat.split(called)
    other = [jaxpr.eqns[0].replace(primitive=jax.lax.sin_p)]
    uncalled = _compat.close(jaxpr, jaxpr.invars, jaxpr.outvars, other)
    for first, second in ((called, uncalled), (uncalled, called)):
        forms = Forms()
        assert [forms.of(each, submesh(0)) for each in (first, second)] == [
            form(each, submesh(0)) for each in (first, second)
        ]


def test_what_says_nothing_about_shardings_needs_no_propagation():
    sharding = NamedSharding(submesh(0), P("data"))

    def inside(x):
        return jax.lax.scan(lambda c, _: (jax.lax.with_sharding_constraint(c, sharding), None), x, None, length=2)[0]

    assert names_mesh(jax.make_jaxpr(inside)(X))
    assert names_mesh(
        jax.make_jaxpr(jax.shard_map(jnp.sin, mesh=submesh(0), in_specs=P("data"), out_specs=P("data")))(X)
    )
    assert not names_mesh(jax.make_jaxpr(jax.grad(lambda x: jax.checkpoint(layer)(x, x).sum()))(X))


@pytest.fixture
def lowered(lowered, monkeypatch):
    """The same, where none is taken from disk, as those of another test would be."""
    monkeypatch.setattr(KeptPrograms, "path_of", lambda *_: None)
    return lowered


def pipeline(blocks, count=4):
    def loss(ws, batch):
        x = batch["x"]
        for index, (block, w) in enumerate(zip(blocks, ws, strict=True)):
            x = mm.task(block, task=on(index))(w, x)
        return squares(x, batch["y"])

    def step(state, batch):
        value, grads = mm.microbatch(jax.value_and_grad(loss), count=count, argnum=1, schedule="1f1b")(
            state["params"], batch
        )
        return adam(state, grads), value

    return step


def test_equal_stages_are_compiled_once(double, lowered):
    def block(w, x):
        return mm.with_sharding_constraint(layer(w, x), P("data", None))

    step, state = train(pipeline([block] * 4), stages(4, data=2), adam_state(weights(4)), batches(3))
    programs = step.latest_plan.compiled.programs
    # First, middle and last stages: their sums and their passes. Their updates are equal; the last has a loss as well.
    assert len(programs) == 16
    assert len(lowered) <= 10
    for spec, program in programs.items():
        assert devices_of(program) == {2 * spec.submesh, 2 * spec.submesh + 1}
    assert any(name.startswith("mm_stage_1_stage_2_1_2_forward") for name in lowered), lowered
    for index, w in enumerate(state["params"]):
        assert {device.id for device in w.devices()} == {2 * index, 2 * index + 1}


def test_stages_that_differ_are_compiled_each(double, lowered):
    blocks = [lambda w, x, power=power: jnp.tanh(x @ w) * power for power in (1.0, 2.0, 3.0, 4.0)]
    step, _ = train(pipeline(blocks), stages(4), adam_state(weights(4)), batches(2))
    passes = [spec for spec in step.latest_plan.compiled.programs if spec.segment is not None and spec.segment.tasks]
    assert len(passes) == 7
    assert sum("stage" in name for name in lowered) == 7


def test_stages_that_call_back_are_compiled_each(double, lowered):
    seen = []

    def block(w, x):
        jax.debug.callback(lambda value: seen.append(float(value)), x[0, 0])
        return layer(w, x)

    train(pipeline([block] * 3), stages(3), adam_state(weights(3)), batches(2))
    jax.effects_barrier()
    assert sum("stage" in name and "forward" in name for name in lowered) >= 3
    assert seen


def test_what_cannot_be_loaded_elsewhere_is_told():
    places = [NamedSharding(submesh(first), P("data")) for first in (0, 2)]

    def compiled(fun):
        return _compat.compile_lowered(jax.jit(fun, in_shardings=places[0], out_shardings=[places[0]]).lower(X))

    borders, elsewhere = (([place], [place]) for place in places)
    (copy,) = _compat.load_elsewhere(compiled(lambda x: [jnp.sin(x)]), borders, [elsewhere])
    (found,) = copy(jax.device_put(X, places[1]))
    assert found.sharding == places[1]
    np.testing.assert_allclose(found, np.sin(X), rtol=1e-6)

    def calling(x):
        return [jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)]

    assert _compat.load_elsewhere(compiled(calling), borders, [elsewhere]) == [None]


def test_a_batch_is_cut_where_it_is_read():
    """No program makes all microbatches beforehand, and the batch may be cut over the devices."""

    def loss(w, batch):
        x = mm.with_sharding_constraint(batch["x"], P("data", None))
        return squares(mm.task(layer, task=on(0))(w[0], x), batch["y"]) + jnp.sum(
            mm.task(layer, task=on(1))(w[1], batch["x"])
        )

    def step(state, batch):
        value, grads = mm.microbatch(jax.value_and_grad(loss), count=4, argnum=1)(state, batch)
        return jax.tree.map(lambda w, g: w - 0.1 * g, state, grads), value

    compiled, _ = train(
        step, stages(2, data=2), [w.astype(np.float32) for w in weights(2)], batches(2, examples=16), rtol=1e-5
    )
    program = compiled.latest_plan.program
    cut = {var for region in compiled.latest_plan.step.regions for var in region.slices}
    assert cut
    assert not cut & {var for var, _, _ in program.keys}
