"""What is said about mistakes, by the text: what was given and what to write. Wrong types have tests of their own."""

import functools
import re
import traceback

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mmruntime as mm
from mmruntime import schedules
from tests.runtime.helpers import layer, normal, on, stages, weights

pytestmark = pytest.mark.quick


def chosen(group, backprop):
    return on(0)


@pytest.mark.parametrize(
    ("matcher", "fields", "error", "message"),
    [
        (
            "layer_0",
            {},
            TypeError,
            r"register_task\('layer_0'\): give task=mm\.Task\(\.\.\.\) or callback=.*got neither",
        ),
        ("layer_0", {"task": 3}, TypeError, r"register_task\('layer_0'\): task must be a mm\.Task, got 3"),
        ("layer_0", {"callback": 3}, TypeError, r"callback must be a function of \(match_group, backprop\), got 3"),
        (
            "layer_0",
            {"task": mm.Task(name="first")},
            ValueError,
            r"has neither a submesh nor logical axes\. Give it mesh_slice= or mesh=, or logical_axes=",
        ),
        (3, {"callback": chosen}, TypeError, r"matcher must be a scope name or a regular expression, got 3"),
        ("layer_(", {"callback": chosen}, ValueError, r"'layer_\(' is not a regular expression: "),
        (
            r"(layer)_(\d+)",
            {"callback": chosen},
            ValueError,
            r"has 2 capture groups; it must have exactly one, .*Write the others as \(\?:\.\.\.\)",
        ),
    ],
    ids=["neither", "no_task", "no_callback", "empty_task", "no_text", "no_expression", "groups"],
)
def test_registrations(matcher, fields, error, message):
    for register in (mm.register_task, mm.Context().register_task, stages(2).register_task):
        with pytest.raises(error, match=message):
            register(matcher, **fields)


def scoped(x):
    for index in range(2):
        with jax.named_scope(f"layer_{index}"):
            x = jnp.cos(x)
    return x


def test_callbacks_must_return_tasks():
    mesh = stages(2)
    mesh.register_task(r"layer_(\d)", callback=lambda number, backprop: {"stage": int(number)})
    message = (
        r"callback of register_task\('layer_\(\\\\d\)'\) returned \{'stage': 0\} for '0'; it must return a mm\.Task"
    )
    with pytest.raises(ValueError, match=message):
        mm.mjit(scoped, mesh=mesh)(jnp.zeros(2))


@pytest.mark.parametrize("matcher", ["(x*)", r"(head)|layer_\d"], ids=["empty", "not_taken"])
def test_the_captured_text_names_the_task(matcher):
    mesh = stages(2)
    mesh.register_task(matcher, callback=chosen)
    with pytest.raises(
        ValueError, match=r"matches the scope 'layer_0' with nothing in its capture group.*at least one"
    ):
        mm.mjit(scoped, mesh=mesh).plan(jnp.zeros(2))


def both_layers(x):
    for name in ("layer_1", "layer_10"):
        with jax.named_scope(name):
            x = jnp.cos(x)
    return x


def test_bare_names_are_whole_and_expressions_that_are_not_warn():
    mesh = stages(2)
    for index, name in enumerate(("layer_1", "layer_10")):
        mesh.register_task(name, task=mm.Task(mesh_slice={"stage": index}))
    report = mm.mjit(both_layers, mesh=mesh).plan(jnp.zeros(2))
    assert [row.tasks for row in report.tasks] == [("layer_1",), ("layer_10",)]
    mesh.clear()
    for index, name in enumerate(("(layer_1)", "(layer_10)")):
        mesh.register_task(name, task=on(index))
    message = r"'\(layer_1\)' matches part of a name in the scope 'layer_10', which '\(layer_10\)' matches as well but"
    with pytest.warns(UserWarning, match=message):
        report = mm.mjit(both_layers, mesh=mesh).plan(jnp.zeros(2))
    assert [row.tasks for row in report.tasks] == [("stage_0",)]


def test_a_task_takes_its_name_from_the_matcher_or_the_captured_text():
    mesh = stages(2)
    mesh.register_task("layer_0", task=mm.Task(mesh_slice={"stage": 0}))
    mesh.register_task(r"(layer_\d+)", callback=lambda group, backprop: mm.Task(mesh_slice={"stage": 1}))
    report = mm.mjit(scoped, mesh=mesh).plan(jnp.zeros(2))
    assert [row.tasks for row in report.tasks] == [("layer_0",), ("layer_1",)]


def test_a_registered_task_without_a_submesh_gives_the_axes_of_the_whole_mesh():
    mesh = stages(2, data=4)
    mesh.register_task("layer_1", task=mm.Task(logical_axes=(("batch", "data"),)))

    def step(x):
        with jax.named_scope("layer_1"):
            return mm.with_sharding_constraint(jnp.cos(x), ("batch",))

    assert mm.mjit(step, mesh=mesh)(jnp.zeros(4)).sharding.spec == jax.P("data")


def test_tasks_of_one_name_must_be_one_task():
    mesh = stages(2)
    mesh.register_task(r"layer_(\d)", callback=lambda number, backprop: on(int(number), "layer"))
    with pytest.raises(ValueError, match=r"have the name 'layer' but differ: .*different names or the same submesh"):
        mm.mjit(scoped, mesh=mesh)(jnp.zeros(2))


def total(w, x):
    return (layer(w, x) ** 2).sum()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, TypeError, r"give size= \(examples per microbatch\) or count= \(how many\), got size=None, count=None"),
        ({"size": 2, "count": 4}, TypeError, r"give size= .* or count= .*, got size=2, count=4"),
        (
            {"count": 2, "schedule": "1f1b", "custom_schedule": [["total"]]},
            ValueError,
            r"custom_schedule= goes with schedule='custom' or none, got '1f1b'",
        ),
        ({"count": 2, "schedule": "custom"}, ValueError, r"schedule='custom' needs custom_schedule=, the rows of the"),
        ({"count": 2, "rng": 1}, TypeError, r"rng=1 must be the position of another positional argument"),
        (
            {"count": 2, "rng": 0},
            TypeError,
            r"rng=0 must be the position of a PRNG key, such as jax\.random\.key\(0\), but the argument there is array",
        ),
        ({"size": 0}, ValueError, r"size must be a positive integer, got 0"),
        (
            {"count": 2, "arg_shardings": ("batch", None, None)},
            ValueError,
            r"arg_shardings: \w+\('batch', None, None\) names 3 dimensions, but the value has 2\. Drop",
        ),
        (
            {"count": 2, "custom_schedule": schedules.make("1f1b", 2, 2)},
            TypeError,
            r"custom_schedule must be rows of task names.*\(schedule= takes such a value\)",
        ),
        (
            {"count": 2, "reduce": "maximum"},
            ValueError,
            r'reduce must be "exact", "sum", "mean", "concat", "max" or "min" .*, got \'maximum\'',
        ),
        (
            {"count": 2, "reduce": "sum", "batch_stats": "microbatch"},
            ValueError,
            r'batch_stats="microbatch" goes with reduce="exact", got batch_stats=\'microbatch\' and reduce=\'sum\'',
        ),
        (
            {"count": 2, "reduce": ("sum", "sum")},
            ValueError,
            r"reduce=\('sum', 'sum'\) is not a prefix of the result's",
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_microbatch_options(options, error, message):
    with pytest.raises(error, match=f"microbatch: {message}"):
        mm.microbatch(total, **{"argnum": 1, **options})(weights(1)[0], normal(4, 4))


@pytest.mark.parametrize(
    ("fun", "batch", "error", "message"),
    [
        (
            lambda b: b["x"].sum(),
            {"x": np.ones((4, 2)), "y": np.ones(6)},
            ValueError,
            r"what is sliced of <lambda> differs in size along dim=0: argument 0\['x'\]: 4, argument 0\['y'\]: 6\. "
            r"Pass what has no row for each example as an argument of its own, and leave that out of argnum\.",
        ),
        (
            lambda b: b["x"].sum(),
            {"x": np.ones((4, 2)), "y": 2.0},
            ValueError,
            r"out of range for argument 0\['y'\] of <lambda>, whose shape is \(\)\. Pass what has no row",
        ),
        (
            lambda b: b.sum(),
            np.ones((0, 2)),
            ValueError,
            r"the batch of <lambda> has no examples: its size along dim=0",
        ),
        (lambda b: 1.0, {}, ValueError, r"the argument to slice of <lambda> has no arrays"),
        (lambda b: (b > 0).any(), np.ones(4), TypeError, r"of <lambda> is bool\[\], which cannot be added up over"),
        (
            lambda b: {"key": jax.random.key(0)},
            np.ones(4),
            TypeError,
            r"result\['key'\] of <lambda> is key<fry>\[\], which cannot be added up",
        ),
    ],
    ids=["sizes", "number", "empty", "nothing", "bool", "key"],
)
def test_microbatch_arguments_and_results(fun, batch, error, message):
    for call in (mm.microbatch(fun, count=2), mm.mjit(mm.microbatch(fun, count=2), mesh=stages(2))):
        with pytest.raises(error, match=message):
            call(batch)


def test_a_function_is_no_batch():
    def loss(w, apply, x):
        return apply(w, x).sum()

    with pytest.raises(
        TypeError, match=r"argnum=\(1, 2\) says that argument 1 of .*loss is cut .* it is no array: <fun"
    ):
        mm.microbatch(loss, count=2, argnum=(1, 2))(np.ones(4), lambda w, x: w * x, np.ones((4, 4)))


def test_gradients_of_integers_are_not_added_up():
    def loss(p, x):
        return (x @ p["w"]).sum() + p["i"].sum().astype(x.dtype)

    params = {"w": jnp.ones((4, 4), jnp.float32), "i": jnp.arange(4)}
    gradient = jax.grad(loss, allow_int=True)
    with pytest.raises(TypeError, match=r"result\['i'\] of loss is float0\[4\].*reduce=\"exact\""):
        mm.microbatch(gradient, argnum=1, count=2)(params, np.ones((4, 4), np.float32))


def test_integers_have_no_mean():
    counted = mm.microbatch(lambda b: {"n": jnp.int32(b.shape[0])}, count=2, reduce="mean")
    with pytest.raises(
        TypeError, match=r'reduce="mean" cannot average result\[\'n\'\] of type int32\. Give reduce= as a'
    ):
        counted(np.ones(4))


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("backend", r"backend= is not supported: the devices are those of the mesh"),
        ("donate_argnum", r"unknown option 'donate_argnum'; did you mean 'donate_argnums'\? There are mesh, devices,"),
        ("colour", r"unknown option 'colour'\. There are mesh, devices, donate_argnums"),
    ],
    ids=lambda value: value.split()[0].rstrip("="),
)
def test_what_mjit_does_not_take(option, message):
    with pytest.raises(TypeError, match=f"mjit: {message}"):
        mm.mjit(scoped, mesh=stages(2), **{option: None})


def test_a_mesh_has_its_devices():
    with pytest.raises(ValueError, match=r"mjit: give mesh= or devices=, not both; a mesh has its devices"):
        mm.mjit(scoped, mesh=stages(2), devices=jax.devices())
    jax_mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("stage",))
    assert mm.MultiMesh(global_mesh=jax_mesh, axis_sizes=(8,), axis_names=("x",)).axis_names == ("stage",)


def test_options_of_shard_map():
    with pytest.raises(
        TypeError, match=r"shard_map: unknown option 'in_spec'; did you mean 'in_specs'\? There are .*in_specs"
    ):
        mm.shard_map(jnp.cos, in_spec=None)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("shutdown", r"has no attribute 'shutdown': there is nothing to shut down\. Leave it out"),
        ("compile_hlo_module", r"'compile_hlo_module': mm\.mjit\(step, mesh=mesh\)\.plan\(\*shapes\) compiles without"),
        ("microbatches", r"has no attribute 'microbatches'; did you mean 'microbatch'\?"),
        ("nothing_like_it", r"has no attribute 'nothing_like_it'$"),
    ],
)
def test_names_that_are_not_there(name, message):
    with pytest.raises(AttributeError, match=message):
        getattr(mm, name)


def returns_text(p, x):
    return x, "text"


def returns_an_object(p, x):
    return {"result": object()}


def is_a_generator(p, x):
    yield x


def branches(p, x):
    return p if x.sum() > 0 else x


def converts(p, x):
    return float(x.sum())


def wants_numpy(p, x):
    return np.cos(x)


def counts(p, x):
    return [p for _ in range(x.sum().astype(int))]


def does_not_fit(p, x):
    return x @ x


def raises(p, x):
    raise RuntimeError("of the user")


def drawn(p, x):
    return jnp.zeros(x[0].astype(int))


MISTAKES = (returns_text, returns_an_object, is_a_generator, branches, converts, wants_numpy, counts, does_not_fit)
MISTAKES += (raises, drawn)


def in_step(wrong):
    mm.mjit(wrong, mesh=stages(2))(np.ones((3, 3), np.float32), np.ones((8, 3), np.float32))


def in_task(wrong):
    in_step(functools.wraps(wrong)(lambda p, x: mm.task(wrong, task=on(0))(p, x)))


def in_microbatch(wrong, size=2, **options):
    def step(p, x):
        return mm.microbatch(wrong, argnum=1, size=size, **options)(p, x)

    in_step(step)


def in_loop(wrong):
    def body(x, total):
        wrong(total, x)
        return total + x.sum()

    in_step(lambda p, x: mm.microbatch_loop(functools.wraps(wrong)(body))([x[:2], x[2:4]], 0.0))


def in_scan(wrong):
    def body(total, x):
        wrong(total, x)
        return total + x.sum(), None

    in_step(lambda p, x: mm.microbatch_scan(jax.lax.scan)(functools.wraps(wrong)(body), 0.0, x.reshape(4, 2, 3)))


def at_once(wrong):
    mm.microbatch(wrong, argnum=1, size=2)(np.ones((3, 3), np.float32), np.ones((8, 3), np.float32))


def in_objects(wrong):
    nnx = pytest.importorskip("flax.nnx")
    step = mm.mjit(wrong, mesh=stages(2), like=nnx.jit)
    step(nnx.Dict(p=nnx.Param(jnp.ones((3, 3)))), np.ones((8, 3), np.float32))


def in_filtered(wrong):
    equinox = pytest.importorskip("equinox")
    mm.mjit(wrong, mesh=stages(2), like=equinox.filter_jit)(np.ones((3, 3), np.float32), np.ones((8, 3), np.float32))


# What a loop's iteration returns is the loop's own, and a result that is no array is one of Equinox and of tasks.
RETURNED = {returns_text, returns_an_object, is_a_generator}
FITTING = {in_loop: RETURNED, in_scan: RETURNED, in_filtered: RETURNED, in_task: {returns_text, is_a_generator}}


@pytest.mark.filterwarnings("ignore:Python iterable type 'generator':DeprecationWarning")
@pytest.mark.parametrize("place", [in_step, in_task, in_microbatch, in_loop, in_scan, at_once, in_objects, in_filtered])
def test_mistakes_are_told_of_the_users_function(place, free_promotion):
    for wrong in MISTAKES:
        if wrong in FITTING.get(place, ()):
            continue
        with pytest.raises(Exception) as error:
            place(wrong)
        frames = traceback.extract_tb(error.value.__traceback__)
        assert not [frame for frame in frames if "mmruntime" in frame.filename], wrong
        text = "".join(traceback.format_exception_only(error.value))
        assert "mmruntime" not in text, wrong
        assert wrong is raises or wrong is does_not_fit or wrong.__name__ in text, text
        if wrong in (branches, converts, wants_numpy, counts):
            assert frames[-1].filename == __file__, wrong
        if wrong is branches and place is not in_loop:
            assert re.search(r"the values? of the arguments? .*\bx\.", text), text
        assert text.count("JAX_TRACEBACK_FILTERING=off") == 1, text


@pytest.mark.parametrize("module", [mm, mm.compat, pytest.param("mmruntime.flax", id="flax")])
def test_errors_of_public_functions_leave_our_frames_out(module):
    module = pytest.importorskip(module) if isinstance(module, str) else module
    raised = 0
    for name in module.__all__:
        for args, keywords in (((), {}), ((object(),), {}), ((object(), object()), {}), ((), {"nonsense": 1})):
            try:
                getattr(module, name)(*args, **keywords)
            except Exception as error:
                raised += 1
                frames = traceback.extract_tb(error.__traceback__)
                assert not [frame for frame in frames if "mmruntime" in frame.filename], (name, args, keywords)
    assert raised > len(module.__all__)


def test_a_flag_of_jax_shows_our_frames():
    jax.config.update("jax_traceback_filtering", "off")
    try:
        with pytest.raises(TypeError) as error:
            mm.mjit(3)
    finally:
        jax.config.update("jax_traceback_filtering", "auto")
    assert any("mmruntime" in frame.filename for frame in traceback.extract_tb(error.value.__traceback__))
    with pytest.raises(TypeError) as error:
        mm.mjit(3)
    assert all(frame.filename == __file__ for frame in traceback.extract_tb(error.value.__traceback__))


WRITTEN_SIZES = {
    "positions": lambda p, x: (x.sum(1) * jnp.arange(8)).sum(),
    "noise": lambda p, x: (x.sum(1) * jax.random.normal(jax.random.key(0), (8,))).sum(),
    "keys": lambda p, x: jax.vmap(lambda key, row: row.sum())(jax.random.split(jax.random.key(0), 8), x).sum(),
    "largest": lambda p, x: jax.lax.top_k(x.sum(1), 4)[0].sum(),
    "shape": lambda p, x: x.reshape(4, 6).sum(),
    "neither size": lambda p, x: (x.sum(1) * jnp.arange(3)).sum(),
    "size of a microbatch": lambda p, x: (x.sum(1) * jnp.arange(2)).sum(),
}


@pytest.mark.parametrize("name", WRITTEN_SIZES)
def test_a_written_number_of_examples_is_told_what_to_write(name, free_promotion):
    with pytest.raises((TypeError, ValueError)) as error:
        in_microbatch(WRITTEN_SIZES[name], reduce="exact")
    text = "\n".join(error.value.__notes__)
    assert "in a microbatch of 2 of 8 examples" in text
    assert "take it from the shape of an argument, as in jnp.arange(x.shape[0])" in text


def test_other_mistakes_are_told_of_no_sizes(free_promotion):
    for wrong in (branches, raises, lambda p, x: p["none"], lambda p, x: jnp.ones((2, 2)) @ p):
        with pytest.raises(Exception) as error:
            in_microbatch(wrong)
        text = "\n".join(error.value.__notes__)
        assert "fails in a microbatch of 2 of 8 examples, and for the whole batch of 8 as well.\n" in text
