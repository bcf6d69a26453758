"""Names in Flax parameter boxes place the parameters and their optimizer state."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax import nnx
from jax.sharding import PartitionSpec as P

import mmruntime as mm
from mmruntime._partition.layouts.input_layouts import boxed_names

pytestmark = [pytest.mark.family, pytest.mark.filterwarnings("ignore:mjit.* cuts no value over the mesh axis")]

X = np.linspace(-1.0, 1.0, 64, dtype=np.float32).reshape(8, 8)


@pytest.fixture(scope="module", autouse=True)
def promotion_of_libraries():
    """Flax and Optax are not written for strict promotion."""
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


def make_mesh(logical_axes=(("embed", None), ("mlp", "model"), ("batch", "data"))) -> mm.MultiMesh:
    return mm.MultiMesh(axis_sizes=(2, 2, 2), axis_names=("stage", "data", "model"), logical_axes=logical_axes)


def box(init, names, kind):
    return {"plain": nn.with_partitioning, "logical": nn.with_logical_partitioning}[kind](init, names)


class Net(nn.Module):
    kind: str = "plain"

    @nn.compact
    def __call__(self, x):
        for index in range(2):
            names = ("embed", "mlp") if index == 0 else ("mlp", "embed")
            kernel = box(nn.initializers.normal(0.1), names, self.kind)
            dense = nn.Dense(8, kernel_init=kernel, use_bias=False, name=f"layer_{index}")
            x = mm.task(dense, task=mm.Task(mesh_slice={"stage": index}))(x)
        return (x * x).mean()


@pytest.mark.parametrize("kind", ["plain", "logical"])
def test_linen_boxes_place_parameters_and_optimizer_state(kind) -> None:
    mesh = make_mesh()
    model, optimizer = Net(kind), optax.adam(1e-2)
    params = model.init(jax.random.key(0), X)
    state = (params, optimizer.init(params))

    def train(state, x):
        params, opt_state = state
        loss, grads = jax.value_and_grad(model.apply)(params, x)
        updates, opt_state = optimizer.update(grads, opt_state)
        return (optax.apply_updates(params, updates), opt_state), loss

    expected_state, expected = jax.jit(train)(state, X)
    step = mm.mjit(train, mesh=mesh)
    placed, loss = step(state, X)
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6), placed, expected_state)
    assert jax.tree.structure(placed) == jax.tree.structure(state)
    for tree in (placed[0], placed[1][0].mu, placed[1][0].nu):
        for index, spec in enumerate((P(None, "model"), P("model"))):
            kernel = tree["params"][f"layer_{index}"]["kernel"].value
            assert kernel.sharding.spec == spec
            assert kernel.devices() == set(mesh.devices[index].flat)
    assert step(placed, X)[1] < loss


def test_nnx_metadata_places_parameters() -> None:
    mesh = make_mesh()
    with nnx.use_eager_sharding(False):
        init = nnx.with_partitioning(nnx.initializers.normal(0.1), ("embed", "mlp"))
        model = nnx.Linear(8, 8, kernel_init=init, rngs=nnx.Rngs(0))
        graph, state = nnx.split(model)

        def forward(state, x):
            return mm.task(lambda state, x: nnx.merge(graph, state)(x), mesh_slice={"stage": 1})(state, x), state

        assert list(boxed_names(jax.tree.structure(state)).values()) == [P("embed", "mlp")]
        out, placed = mm.mjit(forward, mesh=mesh)(state, X)
    np.testing.assert_allclose(out, model(X), rtol=1e-5, atol=1e-6)
    kernel = placed["kernel"].get_value()
    assert kernel.sharding.spec == P(None, "model")
    assert kernel.devices() == set(mesh.devices[1].flat)


def test_each_submesh_translates_with_the_pairs_of_the_task_that_reads() -> None:
    mesh = make_mesh(logical_axes=None)

    def forward(w, x):
        for index, axis in enumerate(("data", "model")):
            x = mm.task(lambda w, x: x @ w.value, mesh_slice={"stage": index}, logical_axes=(("mlp", axis),))(w, x)
        return x

    step = mm.mjit(forward, mesh=mesh)
    step(nn.Partitioned(jnp.eye(8), names=(None, "mlp")), X)
    plan = step.latest_plan
    (weight, *_) = plan.step.invars
    assert [plan.shardings[weight, where].spec for where in range(2)] == [P(None, "data"), P(None, "model")]


def test_unknown_names_in_boxes_warn_once() -> None:
    step = mm.mjit(lambda w: mm.task(lambda w: w.value * 2, mesh_slice={"stage": 0})(w), mesh=make_mesh())
    with pytest.warns(UserWarning, match=r"The logical axis 'mpl' is in no logical_axes.*did you mean 'mlp'\?"):
        step(nn.Partitioned(jnp.eye(8), names=(None, "mpl")))


def test_indivisible_boxes_name_the_task() -> None:
    step = mm.mjit(lambda w: mm.task(lambda w: w.value * 2, "double", mesh_slice={"stage": 0})(w), mesh=make_mesh())
    with pytest.raises(ValueError, match=r"Task 'double': dimension 0 of a value of shape \(3,\) carries \('mlp',\)"):
        step(nn.Partitioned(jnp.ones(3), names=("mlp",)))


def doubled(w):
    return jax.tree.map(lambda leaf: leaf * 2, w)


@pytest.mark.parametrize(
    ("value", "where"),
    [
        (lambda box: {"dense": {"bias": box}}, r"params\['dense'\]\['bias'\]\.value"),
        (lambda box: box, r"params\.value"),
        (lambda box: [jnp.ones(3), box], r"params\[1\]\.value"),
    ],
)
@pytest.mark.parametrize("kind", [nn.Partitioned, nn.LogicallyPartitioned])
def test_a_parameter_with_more_names_than_dimensions_is_named(kind, value, where) -> None:
    def step(params):
        return mm.task(doubled, mesh_slice={"stage": 0})(params)

    message = (
        where + r", of shape \(8,\), with the names \(None, 'mlp'\), has more names than dimensions\. Give it 1 .*"
        r"The mesh is MultiMesh\(stage=2, data=2, model=2\)"
    )
    with pytest.raises(ValueError, match=message):
        mm.mjit(step, mesh=make_mesh())(value(kind(jnp.ones(8), names=(None, "mlp"))))
    # As the message says.
    mm.mjit(step, mesh=make_mesh())(value(kind(jnp.ones(8), names=("mlp",))))


def test_a_variable_of_nnx_with_more_names_than_dimensions_is_named() -> None:
    class Bias(nnx.Module):
        def __init__(self):
            self.b = nnx.Param(jnp.ones(8), out_sharding=("embed", "mlp"), eager_sharding=False)

    def step(state):
        return mm.task(doubled, mesh_slice={"stage": 0})(state)

    with pytest.raises(
        ValueError, match=r"state.*b.*, of shape \(8,\), with the names \('embed', 'mlp'\), has more names"
    ):
        mm.mjit(step, mesh=make_mesh())(nnx.state(Bias()))


def test_factored_statistics_in_copies_of_boxes_have_no_names() -> None:
    params = {"w": nn.Partitioned(jnp.ones((256, 128)), names=("embed", "mlp"))}
    optimizer = optax.adafactor(1e-2, min_dim_size_to_factor=64)
    state = optimizer.init(params)
    factored = [leaf for leaf in jax.tree.leaves(state) if leaf.shape in ((256,), (128,))]
    assert len(factored) == 2

    def step(params, state):
        def loss(params):
            return mm.task(lambda w: (w**2).sum(), mesh_slice={"stage": 1})(params["w"].value)

        updates, state = optimizer.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    compiled = mm.mjit(step, mesh=make_mesh())
    new, _ = compiled(params, state)
    expected, _ = jax.jit(step)(params, state)
    np.testing.assert_allclose(new["w"].value, expected["w"].value, rtol=1e-5)
    assert new["w"].value.sharding.spec == P(None, "model")
    assert "a statistic of a parameter" in str(compiled.explain())


@pytest.mark.parametrize("nested", [False, True])
def test_an_unknown_name_is_warned_of_with_its_parameter(nested) -> None:
    boxed = nn.Partitioned(jnp.ones((8, 8)), names=(None, "data_"))
    message = (
        r"'data_' is in no logical_axes.* First on w.*\.value, of shape \(8, 8\), with the names \(None, 'data_'\); "
        r"the mesh is MultiMesh\(stage=2, data=2, model=2\)"
    )
    with pytest.warns(UserWarning, match=message):
        mm.mjit(lambda w: mm.task(doubled, mesh_slice={"stage": 0})(w), mesh=make_mesh())(
            {"a": {"kernel": boxed}} if nested else boxed
        )


def test_an_unknown_name_in_a_constraint_is_warned_of_with_its_line() -> None:
    def double(x):
        return mm.with_sharding_constraint(x * 2, P("data_"))

    with pytest.warns(UserWarning, match=r"'data_' .* First on the constraint at .*test_inputs\.py:\d+.*double\)"):
        mm.mjit(lambda x: mm.task(double, mesh_slice={"stage": 0})(x), mesh=make_mesh())(X)


def test_an_axis_that_the_submesh_lacks_is_an_error_that_names_the_parameter() -> None:
    task = mm.Task(name="a", mesh_slice={"stage": 0}, logical_axes=[("mlp", "tensor")])
    with pytest.raises(
        ValueError, match=r"'tensor', but its mesh has .* The value is w\['k'\]\.value, of shape \(8, 8\)"
    ):
        mm.mjit(lambda w: mm.task(doubled, task=task)(w), mesh=make_mesh())(
            {"k": nn.Partitioned(jnp.ones((8, 8)), names=(None, "mlp"))}
        )


def test_an_indivisible_dimension_is_an_error_that_names_the_parameter() -> None:
    with pytest.raises(
        ValueError, match=r"not divisible by 2.* The value is w\['k'\]\.value, of shape \(3,\), with the"
    ):
        mm.mjit(lambda w: mm.task(doubled, mesh_slice={"stage": 0})(w), mesh=make_mesh())(
            {"k": nn.Partitioned(jnp.ones(3), names=("mlp",))}
        )


def streams_of(rngs: nnx.Rngs, index: int) -> nnx.Rngs:
    """The random streams of a microbatch, written by hand."""
    own = nnx.clone(rngs)
    for stream in (own.dropout, own.noise):
        stream.key[...] = jax.random.fold_in(stream.key[...], index)
    return own


def dropped(w, x, rngs):
    kept = jax.random.bernoulli(rngs.dropout(), 0.5, x.shape)
    return ((x * kept) @ w).sum() + (jax.random.normal(rngs.noise(), x.shape) @ w).sum()


@pytest.mark.parametrize("reduce", ["sum", "exact"])
def test_each_microbatch_has_random_streams_of_its_own(reduce) -> None:
    def step(w, x, rngs):
        rngs.dropout()
        loss, grads = mm.microbatch(nnx.value_and_grad(dropped), size=2, argnum=1, rng=2, reduce=reduce)(w, x, rngs)
        return loss, grads, rngs.dropout.count[...], rngs.noise.count[...]

    w, x, rngs = jnp.eye(8), jnp.ones((8, 8)), nnx.Rngs(dropout=0, noise=1)
    once = nnx.clone(rngs)
    once.dropout()
    by_hand = [nnx.value_and_grad(dropped)(w, x[2 * i : 2 * i + 2], streams_of(once, i)) for i in range(4)]
    expected = jax.tree.map(lambda *each: sum(each), *by_hand)
    for compiled in (jax.jit(step), mm.mjit(step, mesh=make_mesh())):
        *found, dropout, noise = compiled(w, x, rngs)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), tuple(found), expected)
        # As one call on the whole batch counts.
        assert (int(dropout), int(noise)) == (2, 1)
    # Draws of microbatches differ from each other.
    assert len({float(loss) for loss, _ in by_hand}) == 4


def test_what_leaves_its_arguments_alone_advances_no_stream() -> None:
    def gradient(w, x, rngs):
        return jax.grad(lambda w: dropped(w, x, nnx.clone(rngs)))(w)

    def step(w, x, rngs):
        grads = mm.microbatch(gradient, size=2, argnum=1, rng=2)(w, x, rngs)
        return grads, rngs.dropout.count[...]

    arguments = jnp.eye(8), jnp.ones((8, 8)), nnx.Rngs(dropout=0, noise=1)
    (found, count), (expected, _) = mm.mjit(step, mesh=make_mesh())(*arguments), jax.jit(step)(*arguments)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert int(count) == 0


def test_a_transformation_that_does_not_carry_streams_gets_advice_that_works() -> None:
    def refused(w, x, rngs):
        return mm.microbatch(jax.grad(dropped), size=2, argnum=1, rng=2)(w, x, rngs)

    def advised(w, x, rngs):
        grad = jax.grad(lambda w, x, key: dropped(w, x, nnx.Rngs(dropout=key, noise=1)))
        return mm.microbatch(grad, size=2, argnum=1, rng=2)(w, x, rngs.dropout())

    arguments = jnp.eye(8), jnp.ones((8, 8)), nnx.Rngs(dropout=0, noise=1)
    with pytest.raises(
        TypeError,
        match=r"dropped draws from the nnx object at rng=2 at .*test_inputs\.py:\d+ \(dropped\), .*"
        r" Use nnx\.grad .* or pass a key",
    ):
        mm.mjit(refused, mesh=make_mesh())(*arguments)
    found = mm.mjit(advised, mesh=make_mesh())(*arguments)
    np.testing.assert_allclose(found, jax.jit(advised)(*arguments), rtol=1e-5)


def test_streams_that_were_split_have_a_key_for_each_entry() -> None:
    def loss(w, x, rngs):
        keys = jax.vmap(jax.random.fold_in)(rngs.dropout.key[...], jnp.arange(2))
        return sum((jax.random.normal(key, x.shape) @ w).sum() for key in keys)

    def step(w, x, rngs):
        return mm.microbatch(jax.grad(loss), size=4, argnum=1, rng=2)(w, x, rngs.split(2))

    arguments = jnp.eye(8), jnp.ones((8, 8)), nnx.Rngs(dropout=0)
    found = mm.mjit(step, mesh=make_mesh())(*arguments)
    np.testing.assert_allclose(found, jax.jit(step)(*arguments), rtol=1e-5)
    with pytest.raises(TypeError, match=r"rng=2 must be the position of a PRNG key.* or of an nnx .* Param there has"):
        mm.microbatch(jax.grad(loss), size=4, argnum=1, rng=2)(*arguments[:2], nnx.Param(jnp.eye(8)))
