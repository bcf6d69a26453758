"""Parameters and optimizer state live on their stage, through conditionals, loops and calls over whole trees."""

import functools
import re
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax.experimental import io_callback
from jax.sharding import PartitionSpec

import mmruntime as mm
from tests.runtime.helpers import assert_close, batches, chain, normal, on, stages, weights

optax = pytest.importorskip("optax")
contrib = pytest.importorskip("optax.contrib")

pytestmark = pytest.mark.family

NUM_STAGES = 2
# A part of a path such as ['stage2'].
STAGE = re.compile(r"stage(\d)")


@pytest.fixture(autouse=True)
def optax_promotes():
    """Optax mixes Python's and JAX's types."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def loss(params, x):
    for index in range(NUM_STAGES):

        def piece(p, x):
            for w in jax.tree.leaves(p):
                x = jnp.tanh(x @ w if w.ndim == 2 else x * w.sum() + w.mean())
            return x

        x = mm.task(piece, task=on(index))(params[f"stage{index}"], x)
    return jnp.mean(x**2)


def trees(shapes):
    """Parameters: on each stage a tree of arrays of these shapes."""
    return {
        f"stage{index}": {f"p{k}": jnp.asarray(normal(*shape, seed=7 * index + k)) for k, shape in enumerate(shapes)}
        for index in range(NUM_STAGES)
    }


def misplaced(tree):
    """The paths of arrays that are not on the stage in their path."""
    wrong = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(path)
        found = STAGE.search(name)
        if found and leaf.size > 2 and {each.id for each in leaf.devices()} != {int(found[1])}:
            wrong.append(name)
    return wrong


def train(optimizer, params, count=2, steps=3):
    """Three updates, on stages and under plain `jax.jit`; the compiled step and the last state."""

    def step(params, state, x):
        fun = jax.grad(loss)
        if count is not None:
            fun = mm.microbatch(fun, count=count, argnum=1, reduce="mean", schedule="1f1b")
        grads = fun(params, x)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    compiled, plain, x = mm.mjit(step, mesh=stages(NUM_STAGES)), jax.jit(step), normal(8, 4)
    one = many = (params, optimizer.init(params))
    for _ in range(steps):
        one, many = plain(*one, x), compiled(*many, x)
        assert_close(many, one, 1e-9)
    return compiled, many


def adamw(**options):
    return optax.adamw(1e-2, eps=1e-3, **options)


def shampoo():
    """Preconditioners from products of gradients; their roots by iteration, in one loop over the whole tree."""

    def init(params):
        return jax.tree.map(lambda p: jnp.eye(p.shape[0]), params)

    def update(grads, state, params=None):
        del params
        outer = jax.tree.map(lambda g: jnp.outer(g, g) if g.ndim == 1 else g @ g.T, grads)
        state = jax.tree.map(lambda s, o: 0.9 * s + 0.1 * o, state, outer)

        def newton(_, roots):
            return jax.tree.map(lambda r, s: 1.5 * r - 0.5 * r @ s @ r, roots, state)

        start = jax.tree.map(lambda s: jnp.eye(s.shape[0]) / (1 + jnp.trace(s)), state)
        roots = jax.lax.fori_loop(0, 3, newton, start)
        return jax.tree.map(lambda r, g: -0.1 * r @ g, roots, grads), state

    return optax.GradientTransformation(init, update)


OPTIMIZERS = {
    "adamw": adamw,
    "accumulated": lambda: optax.MultiSteps(adamw(), 2),
    "accumulated unless not finite": lambda: optax.MultiSteps(adamw(), 2, should_skip_update_fn=optax.skip_not_finite),
    "only if finite": lambda: optax.apply_if_finite(adamw(), 3),
    "only if finite, accumulated, clipped": lambda: optax.apply_if_finite(
        optax.MultiSteps(optax.chain(optax.clip_by_global_norm(0.01), adamw()), 2), 3
    ),
    "conditionally": lambda: optax.conditionally_transform(adamw(), lambda step: step > 0),
    "clipped adaptively": lambda: optax.chain(optax.adaptive_grad_clip(0.1), optax.sgd(0.1, momentum=0.9)),
    "scheduled": lambda: optax.adamw(optax.warmup_cosine_decay_schedule(0, 1e-2, 2, 10), eps=1e-3),
    "averaged": lambda: optax.chain(adamw(), optax.ema(0.9)),
    "masked": lambda: optax.masked(adamw(), lambda tree: jax.tree.map(lambda leaf: leaf.ndim == 2, tree)),
    "several": lambda: optax.multi_transform(
        {"matrix": optax.lion(1e-2), "vector": optax.MultiSteps(optax.sgd(0.1), 2).gradient_transformation()},
        lambda tree: jax.tree.map(lambda leaf: "matrix" if leaf.ndim == 2 else "vector", tree),
    ),
    "factored": lambda: optax.adafactor(1e-2, min_dim_size_to_factor=2),
    "preconditioned": shampoo,
    "normalized": lambda: optax.novograd(1e-2),
    "layer-wise": lambda: optax.lamb(1e-2),
    "without schedule": lambda: contrib.schedule_free_adamw(1e-2),
}


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_state_is_on_its_stage(name):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="mjit")
        compiled, found = train(OPTIMIZERS[name](), trees([(4, 4), (4,)]))
    assert misplaced(found) == []
    # Only scalars cross between stages outside of the loop: no more than a few for each array.
    once = [row for row in compiled.explain().transfers if row.runs == 1]
    assert all(row.size <= 16 * row.arrays for row in once), once


# State whose update is thrown away, as that of a target network, lies with the parameter of the same place in the tree.


def pairs(params, x):
    """The loss of a network and the target that follows it."""
    return (loss(params["net"], x) - jax.lax.stop_gradient(loss(params["target"], x))) ** 2


def followed(old, new):
    """Parameters of which the target's are an average of the network's, whatever the optimizer says."""
    return {**new, "target": jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, old["target"], new["net"])}


def of_arguments(optimizer, grad):
    def step(params, state, x):
        updates, state = optimizer.update(grad(pairs)(params, x), state, params)
        return followed(params, optax.apply_updates(params, updates)), state

    return step, lambda params: (params, optimizer.init(params))


def of_one_argument(optimizer, grad):
    """All state in one tree, whose metrics come from the state of the optimizer; and what is handed on as it is."""

    def step(state, x):
        params = state["params"]
        updates, moments = optimizer.update(grad(pairs)(params, x), state["moments"], params)
        norm = optax.tree.norm([leaf for leaf in jax.tree.leaves(moments) if leaf.ndim])
        new = followed(params, optax.apply_updates(params, updates))
        slow = jax.lax.cond(norm > 0, lambda: jax.tree.map(lambda a: a * 0.5, state["slow"]), lambda: state["slow"])
        return {"params": new, "moments": moments, "slow": slow, "kept": state["kept"]}, norm

    def start(params):
        moments, slow = optimizer.init(params), jax.tree.map(jnp.ones_like, params["net"])
        return ({"params": params, "moments": moments, "slow": slow, "kept": jnp.ones((4, 4))},)

    return step, start


def of_separate_arguments(optimizer, grad):
    """An optimizer for each network, and the last gradients, whose arrays have another shape."""

    def step(net, target, states, last, x):
        old = {"net": net, "target": target}
        grads = grad(pairs)(old, x)
        found = {k: optimizer.update(grads[k], states[k], old[k]) for k in old}
        last = jax.tree.map(lambda a, g: jnp.concatenate([a[1:], g[None]]), last, grads)
        new = followed(old, {k: optax.apply_updates(old[k], updates) for k, (updates, _) in found.items()})
        return new["net"], new["target"], {k: state for k, (_, state) in found.items()}, last

    def start(params):
        states = {k: optimizer.init(each) for k, each in params.items()}
        return *params.values(), states, jax.tree.map(lambda p: jnp.zeros((3, *p.shape)), params)

    return step, start


def check_discarded(optimizer, form, count):
    params = {"net": trees([(4, 4), (4,)]), "target": trees([(4, 4), (4,)])}
    step, start = form(optimizer, (lambda f: mm.microbatch(jax.grad(f), count=count, argnum=1)) if count else jax.grad)
    state, x, size = start(params), normal(8, 4), len(jax.tree.leaves(start(params)))
    compiled, plain = mm.mjit(step, mesh=stages(NUM_STAGES)), jax.jit(step)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="mjit")
        tree = jax.tree.structure(state)
        one = many = state
        for _ in range(2):
            one = jax.tree.unflatten(tree, jax.tree.leaves(plain(*one, x))[:size])
            many = jax.tree.unflatten(tree, jax.tree.leaves(compiled(*many, x))[:size])
    assert_close(many, one, 1e-9)
    assert misplaced(many) == []


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(
    ("name", "form", "count"),
    [
        ("adamw", of_arguments, None),
        ("only if finite, accumulated, clipped", of_arguments, 2),
        ("several", of_one_argument, None),
        ("factored", of_arguments, None),
        ("averaged", of_separate_arguments, 2),
        ("masked", of_one_argument, 2),
        ("layer-wise", of_separate_arguments, None),
    ],
)
def test_state_whose_update_is_thrown_away_is_with_its_parameter(name, form, count):
    check_discarded(OPTIMIZERS[name](), form, count)


@pytest.mark.slow
@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("form", [of_arguments, of_one_argument, of_separate_arguments])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_state_whose_update_is_thrown_away_by_all_optimizers(name, form):
    check_discarded(OPTIMIZERS[name](), form, None)


# Random optimizers over random trees.


@st.composite
def optimizers(draw):
    inner = draw(st.sampled_from((adamw, lambda: optax.sgd(0.1, momentum=0.9), lambda: optax.lion(1e-2), shampoo)))()
    for _ in range(draw(st.integers(1, 3))):
        inner = draw(
            st.sampled_from(
                (
                    lambda tx: optax.MultiSteps(tx, 2).gradient_transformation(),
                    lambda tx: optax.apply_if_finite(tx, 3),
                    lambda tx: optax.chain(optax.clip_by_global_norm(0.1), tx),
                    lambda tx: optax.chain(optax.adaptive_grad_clip(0.1), tx),
                    lambda tx: optax.conditionally_mask(tx, lambda step: step != 1),
                    lambda tx: optax.masked(tx, lambda t: jax.tree.map(lambda leaf: leaf.ndim == 2, t)),
                    lambda tx: optax.chain(tx, optax.ema(0.9)),
                    lambda tx: optax.chain(optax.add_decayed_weights(0.1), tx),
                )
            )
        )(inner)
    return inner


shapes = st.lists(st.sampled_from(((4, 4), (4,), (5,))), min_size=1, max_size=3)


def check_random(optimizer, shapes, count):
    with jax.enable_x64(True), warnings.catch_warnings():
        warnings.filterwarnings("error", message="mjit")
        assert misplaced(train(optimizer, trees(shapes), count)[1]) == []


@pytest.mark.slow
@settings(max_examples=5, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(optimizers(), shapes, st.sampled_from((None, 2)))
def test_random_optimizers(optimizer, shapes, count):
    check_random(optimizer, shapes, count)


@pytest.mark.slow
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(optimizers(), shapes, st.sampled_from((None, 2)))
def test_a_hundred_random_optimizers(optimizer, shapes, count):
    check_random(optimizer, shapes, count)


# Equations over trees: `update(params, state, grads, count)`.


def while_over_a_tree(p, m, g, c):
    c, m = jax.lax.while_loop(
        lambda s: s[0] < c + 2, lambda s: (s[0] + 1, [a * 0.9 + b for a, b in zip(s[1], g, strict=True)]), (c, m)
    )
    return p, m, c


def scan_with_slices_and_stacks(p, m, g, c):
    def body(m, t):
        m = [a * 0.9 + b * t for a, b in zip(m, g, strict=True)]
        return m, ([a.sum() for a in m], t * 2)

    m, (sums, twice) = jax.lax.scan(body, m, jnp.arange(3.0))
    return p, [a + s.sum() for a, s in zip(m, sums, strict=True)], c + twice.sum().astype(c.dtype)


def scan_with_scalars_of_arrays(p, m, g, c):
    def body(s, _):
        m = [a * 0.9 + b * k for a, b, k in zip(s[0], g, s[1], strict=True)]
        return (m, [a.max() for a in m]), None

    (m, n), _ = jax.lax.scan(body, (m, [1.0, 1.0, 1.0]), None, length=3)
    return p, [a * b for a, b in zip(m, n, strict=True)], c


def switch_with_values_that_cross(p, m, g, c):
    def norm(p, m, g):
        n = jnp.sqrt(sum((k**2).sum() for k in g))
        m = [a + k / n for a, k in zip(m, g, strict=True)]
        return [u - 0.1 * v for u, v in zip(p, m, strict=True)], m

    def array(p, m, g):
        h = m[0] + 0 * g[0]
        return p, [h, h + m[1] + g[1], h @ m[2] + g[2]]

    p, m = jax.lax.switch(c % 3, [lambda p, m, g: (p, m), norm, array], p, m, g)
    return p, m, c + 1


def nested_calls_and_conditionals(p, m, g, c):
    @jax.jit
    def inner(p, m, g, k):
        def true():
            return [a - b for a, b in zip(p, g, strict=True)], [jnp.zeros_like(a) for a in m], 1

        return jax.lax.cond(k, true, lambda: (p, m, 2))

    def other():
        return p, jax.checkpoint(lambda: [jax.nn.relu(a) + b for a, b in zip(m, g, strict=True)])(), 3

    p, m, s = jax.lax.cond(c > 0, lambda: inner(p, m, g, c > 1), other)
    return p, m, c + s


def random_keys(p, m, g, c):
    def noisy(p, m, g):
        keys = jax.random.split(jax.random.fold_in(jax.random.key(0), c), 3)
        noise = [jax.random.normal(key, a.shape) for key, a in zip(keys, m, strict=True)]
        return p, [a + n * b for a, n, b in zip(m, noise, g, strict=True)]

    return *jax.lax.cond(c >= 0, noisy, lambda p, m, g: (p, m), p, m, g), c + 1


CUT = (
    while_over_a_tree,
    scan_with_slices_and_stacks,
    scan_with_scalars_of_arrays,
    switch_with_values_that_cross,
    nested_calls_and_conditionals,
    random_keys,
)


def small_loss(params, x):
    for index, w in enumerate(params):
        x = mm.task(lambda w, x: jnp.tanh(x @ w), task=on(index))(w, x)
    return (x**2).sum()


def step_of(update, count):
    def step(p, m, c, x):
        fun = jax.grad(small_loss)
        fun = fun if count is None else mm.microbatch(fun, argnum=1, count=count)
        return update(p, m, fun(p, x), c)

    return step


def state_of_three():
    return [jnp.eye(4) * (0.5 + i) + 0.1 for i in range(3)], [jnp.full((4, 4), 0.1 * i) for i in range(3)], jnp.int32(0)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("count", [None, 2])
@pytest.mark.parametrize("update", CUT)
def test_equations_over_trees_are_cut_by_stage(update, count):
    step, x = step_of(update, count), normal(4, 4)
    compiled, plain = mm.mjit(step, mesh=stages(3)), jax.jit(step)
    one = many = state_of_three()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="mjit")
        for _ in range(4):
            one, many = plain(*one, x), compiled(*many, x)
            assert_close(many, one, 1e-12)
    for tree in many[:2]:
        assert [{each.id for each in leaf.devices()} for leaf in tree] == [{0}, {1}, {2}]


def test_effects_in_branches_run_once_in_order_and_only_when_taken():
    calls = []

    def tell(label, value):
        calls.append((label, round(float(value), 3)))
        return np.float32(value)

    def update(p, m, g, c):
        def skip(p, m, g):
            jax.debug.callback(lambda v: (tell("skipped", v), None)[1], c)
            return p, m

        def move(p, m, g):
            kind = jax.ShapeDtypeStruct((), jnp.float32)
            n = io_callback(functools.partial(tell, "norm"), kind, sum((k**2).sum() for k in g), ordered=True)
            io_callback(lambda v: (tell("last", v), None)[1], None, g[2].sum(), ordered=True)
            return p, [a + k / n for a, k in zip(m, g, strict=True)]

        return *jax.lax.cond(c > 0, move, skip, p, m, g), c + 1

    step, x = step_of(update, 2), normal(4, 4, dtype=np.float32)
    logs = []
    for compiled in (jax.jit(step), mm.mjit(step, mesh=stages(3))):
        state = state_of_three()
        for _ in range(3):
            state = jax.block_until_ready(compiled(*state, x))
            jax.effects_barrier()
        logs.append((list(calls), state))
        calls.clear()
    (plain, one), (piped, many) = logs
    assert len(plain) == 5
    assert [label for label, _ in piped] == [label for label, _ in plain]
    np.testing.assert_allclose([v for _, v in piped], [v for _, v in plain], rtol=1e-4)
    assert_close(many, one, 1e-5)


# What cannot be cut.


def scan_of_parts_that_depend_on_each_other(p, m, g, c):
    def body(m, t):
        n = sum(jnp.sum(a) for a in m)
        return [a * 0.9 + b * t + n for a, b in zip(m, g, strict=True)], n

    m, sums = jax.lax.scan(body, m, jnp.arange(3.0))
    return p, m, c + sums.sum().astype(c.dtype)


def while_that_asks_an_array(p, m, g, c):
    _, m = jax.lax.while_loop(
        lambda s: (s[0] < 2) & (s[1][0].sum() < 1e9),
        lambda s: (s[0] + 1, [a * 0.9 + b for a, b in zip(s[1], g, strict=True)]),
        (0, m),
    )
    return p, m, c


def flat(p, m, g, c):
    joined = jnp.concatenate([a.ravel() for a in g]) * 0.1
    new = joined.reshape(3, 4, 4)
    return [a - b for a, b in zip(p, new, strict=True)], [a + b for a, b in zip(m, new, strict=True)], c


@pytest.mark.parametrize(
    ("update", "operation"),
    [(scan_of_parts_that_depend_on_each_other, "scan"), (while_that_asks_an_array, "while"), (flat, "concatenate")],
)
def test_state_away_from_its_stage_is_a_warning_with_names_bytes_and_line(update, operation):
    step, x = step_of(update, 2), normal(4, 4, dtype=np.float32)
    compiled = mm.mjit(step, mesh=stages(3))
    text = (
        rf"state of several stages lives on submesh 0, 192 bytes: m\[0\], m\[1\], m\[2\]\. It is pulled there by "
        rf"'{operation}' at .*{Path(__file__).name}:\d+:\d+ \({update.__name__}\)"
    )
    with pytest.warns(UserWarning, match=f"^mjit: {text}"):
        found = compiled(*state_of_three(), x)
    assert_close(found, jax.jit(step)(*state_of_three(), x), 1e-5)
    # Parameters are on their stage even so.
    assert [{each.id for each in leaf.devices()} for leaf in found[0]] == [{0}, {1}, {2}]
    assert re.match(f"WARNING: {text}", str(compiled.explain()))


@pytest.mark.parametrize("is_placed", [False, True])
def test_a_layer_between_tasks_of_several_stages_is_advised_to_have_one(is_placed):
    def dot(w, x):
        return x @ w

    def net(weights, x):
        x = (mm.task(dot, task=on(0)) if is_placed else dot)(weights[0], x)
        for index in range(2):
            x = jnp.tanh(mm.task(dot, task=on(index))(weights[1 + index], x))
        return (mm.task(dot, task=on(1)) if is_placed else dot)(weights[3], x)

    def critics(d, real, fake):
        return (net(d, real) ** 2 - net(d, fake)).mean()

    def generators(g, d, z):
        return net(d, net(g, z)).mean()

    def step(g, d, z, real):
        d_grads = jax.grad(critics)(d, real, net(g, z))
        g_grads = jax.grad(generators)(g, d, z)
        return [[w - 0.1 * v for w, v in zip(*each, strict=True)] for each in ((g, g_grads), (d, d_grads))]

    layers = [normal(4, 4, seed=seed, dtype=np.float32) for seed in range(8)]
    arguments = (layers[:4], layers[4:], *(normal(8, 4, seed=seed, dtype=np.float32) for seed in (8, 9)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = mm.mjit(step, mesh=stages(2))(*arguments)
    assert_close(found, jax.jit(step)(*arguments), 1e-5)
    told = [str(each.message) for each in caught if "state of several stages lives on" in str(each.message)]
    assert bool(told) != is_placed
    for text in told:
        assert "a layer of the model has its parameters on a stage by the hint task(stage=...), or by mm.task" in text


def _adversaries(*, in_branch: bool, tasks: str = "gd"):
    """A step of a generator and its critic, in which the generator is updated in every other step."""
    optimizer = optax.adam(1e-2)

    def net(name, weights, x):
        for index, each in enumerate(weights):
            layer = functools.partial(jnp.matmul, b=each)
            x = jnp.tanh((mm.task(layer, f"{name}{index}", mesh_slice={"stage": index}) if name in tasks else layer)(x))
        return x

    def critics(d, g, z, real):
        return (net("d", d, net("g", g, z)) - net("d", d, real)).mean()

    def generators(g, d, z):
        return -net("d", d, net("g", g, z)).mean()

    def update(grads, state, weights):
        updates, state = optimizer.update(grads, state)
        return optax.apply_updates(weights, updates), state

    def step(g, g_state, d, d_state, z, real):
        d, d_state = update(jax.grad(critics)(d, g, z, real), d_state, d)
        is_turn = d_state[0].count % 2 == 0

        def updated():
            return update(jax.grad(generators)(g, d, z), g_state, g)

        new = None if in_branch else updated()
        g, g_state = jax.lax.cond(is_turn, updated if in_branch else lambda: new, lambda: (g, g_state))
        return g, g_state, d, d_state

    weights = [[normal(4, 4), normal(4, 4)] for _ in range(2)]
    g, d = weights
    return step, (g, optimizer.init(g), d, optimizer.init(d), normal(8, 4, dtype=np.float32), normal(8, 4))


def test_a_branch_that_computes_gradients_is_advised_to_choose_only():
    step, arguments = _adversaries(in_branch=True)
    text = (
        r"^mjit: state of several stages lives on submesh 0, 256 bytes: g_state\[0\]\.mu\[0\], .* pulled there by "
        rf"'cond' at .*{Path(__file__).name}:\d+.*, which runs as one program, .* Compute gradients and updates"
    )
    with pytest.warns(UserWarning, match=text):
        mm.mjit(step, mesh=stages(2)).plan(*arguments)
    followed, arguments = _adversaries(in_branch=False)
    compiled = mm.mjit(followed, mesh=stages(2))
    found = arguments
    for _ in range(2):
        found = (*compiled(*found[:4], *arguments[4:]), *arguments[4:])
    expected = jax.jit(step)(*jax.jit(step)(*arguments), *arguments[4:])
    assert_close(found[:4], expected, 1e-5)
    for trees_of_weights in (found[0], found[1][0].mu, found[1][0].nu, found[2], found[3][0].mu):
        assert [{each.id for each in leaf.devices()} for leaf in trees_of_weights] == [{0}, {1}]


def test_a_model_without_tasks_has_no_stage_by_the_names_of_another():
    """Warnings are errors: the critic's weights, and their state, are named and shaped as the generator's."""
    step, arguments = _adversaries(in_branch=False, tasks="g")
    compiled = mm.mjit(step, mesh=stages(2))
    assert_close(compiled(*arguments), jax.jit(step)(*arguments), 1e-5)


@pytest.mark.usefixtures("double")
def test_a_line_inside_of_a_package_is_followed_by_the_users():
    params = trees([(4, 4)])
    with pytest.warns(UserWarning, match=rf"_layouts\.py:\d+.*, called at .*{Path(__file__).name}:\d+ \(.*step\)"):
        _, (params, _) = train(optax.flatten(adamw()), params, steps=1)
    assert misplaced(params) == []


def swapped(p, m, g, c):
    return p, [m[2] + g[2], m[1] + g[1], m[0] + g[0]], c


def mixed(p, m, g, c):
    return p, [0.9 * m[0] + m[2] + g[2], m[1] + g[1], m[2] + g[2]], c


def only_written(p, m, g, c):
    return p, [g[1] * 2, g[1] * 3, g[2] * 2], c


def conditionally(p, m, g, c):
    return *jax.lax.cond(c >= 0, swapped, lambda p, m, g, c: (p, m, c), p, m, g, c)[:2], c


@pytest.mark.parametrize(
    ("update", "away"),
    [(swapped, {0: 2, 2: 0}), (mixed, {0: 2}), (only_written, {0: 1}), (conditionally, {})],
)
def test_state_whose_next_value_is_made_on_another_stage_is_a_warning(update, away):
    step, x = step_of(update, 2), normal(4, 4, dtype=np.float32)
    compiled = mm.mjit(step, mesh=stages(3))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = compiled(*state_of_three(), x)
    told = [str(each.message) for each in caught if str(each.message).startswith("mjit: state of")]
    assert len(told) == len(away)
    here = rf"at .*{Path(__file__).name}:\d+:\d+ \({update.__name__}\)"
    for text, (stage, where) in zip(told, away.items(), strict=True):
        expected = (
            rf"mjit: state of submesh {stage} lives on submesh {where}, 64 bytes: m\[{stage}\]\. "
            rf"Its next value is made there by '\w+' {here}"
        )
        assert re.match(expected, text), text
        assert text.removeprefix("mjit: ") in str(compiled.explain())
    homes = [{each.id for each in leaf.devices()} for leaf in found[1]]
    assert homes == [{away.get(index, index)} for index in range(3)]
    assert_close(found, jax.jit(step)(*state_of_three(), x), 1e-5)


def test_state_that_tasks_read_or_that_has_no_namesake_is_no_warning():
    """A teacher that tasks of another stage read, and a cache whose shape is that of no parameter."""

    def step(p, teacher, cache, x):
        def loss(p):
            y = small_loss(p, x)
            other = mm.task(lambda w: w.sum(), task=on(2))(teacher[0])
            return y + jax.lax.stop_gradient(other)

        value, grads = jax.value_and_grad(loss)(p)
        return p, [teacher[0] * 0.9 + grads[0]], [cache[0] + grads[1][:2]], value

    args = state_of_three()[0], [jnp.eye(4)], [jnp.ones((2, 4))], normal(4, 4, dtype=np.float32)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="mjit")
        _, teacher, cache, _ = mm.mjit(step, mesh=stages(3))(*args)
    assert [{each.id for each in leaf.devices()} for leaf in (*teacher, *cache)] == [{2}, {1}]


def test_state_that_is_grouped_by_stage_has_its_namesake_in_its_group():
    """`s[0][1]`, moments of stage 0, has more keys of `s[1][0]`, the parameters of stage 1, than of its own."""

    def step(s, x):
        loss = lambda ps: small_loss([p["w"] for p in ps], x)  # noqa: E731
        value, grads = jax.value_and_grad(loss)([each[0] for each in s])
        moments = [
            ({"w": 0.9 * m["w"] + g["w"]}, {"w": v["w"] + g["w"] ** 2}) for (_, m, v), g in zip(s, grads, strict=True)
        ]
        return [(p, m, v) for (p, *_), (m, v) in zip(s, moments, strict=True)], value

    states = [tuple({"w": jnp.eye(4)} for _ in range(3)) for _ in range(3)]
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="mjit")
        found, _ = mm.mjit(step, mesh=stages(3))(states, normal(4, 4, dtype=np.float32))
    assert [{each.id for leaf in jax.tree.leaves(s) for each in leaf.devices()} for s in found] == [{0}, {1}, {2}]


def test_a_batch_of_the_type_of_a_result_is_no_state():
    """It is laid out before the first stage reads it, and the last stage makes the result."""

    def step(p, x):
        h = mm.with_sharding_constraint(x, PartitionSpec())
        for i, w in enumerate(p):
            h = mm.task(lambda w, h: jnp.tanh(w @ h), task=on(i))(w, h)
        return mm.with_sharding_constraint(h, PartitionSpec()), h.sum()

    args = state_of_three()[0], normal(4, 6, dtype=np.float32)
    compiled = mm.mjit(step, mesh=stages(3))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="mjit")
        compiled(*args)
    assert "state of" not in str(compiled.explain())


def test_equal_stages_update_with_one_program_though_each_counts_its_steps():
    # A count is a scalar, so that every submesh computes those of all stages.
    ws, counts = weights(4), [jnp.zeros(()) + index for index in range(4)]

    def update(w, g, n):
        n = n + 1
        return w - g / jnp.sqrt(n), n

    def step(ws, counts, x):
        grads = mm.microbatch(jax.grad(lambda ws, x: jnp.sum(chain(ws, x) ** 2)), count=2, argnum=1)(ws, x)
        pairs = [update(w, g, n) for w, g, n in zip(ws, grads, counts, strict=True)]
        return [w for w, _ in pairs], [n for _, n in pairs]

    x = batches(1)[0]["x"]
    compiled = mm.mjit(step, mesh=stages(4))
    assert_close(compiled(ws, counts, x), jax.jit(step)(ws, counts, x), rtol=1e-5)
    plan = compiled.latest_plan
    updates = {part.submesh: plan.shardings.form(part) for part in plan.segments.by_region[-1]}
    assert len(updates) == 4
    assert len(set(updates.values())) == 1
