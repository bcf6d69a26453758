"""Programs that the next start takes from disk before they are lowered: only those that are the same."""

import contextlib
import dataclasses
import functools
import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.compilation_cache import compilation_cache
from jax.experimental.layout import Layout, with_layout_constraint
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import mmruntime as mm
from mmruntime import _compat
from mmruntime._execution import program_cache
from mmruntime._jaxpr.canonical_forms import Forms, Identity, form
from mmruntime._jaxpr.content import ContentDigests, content_digest
from tests.runtime.helpers import normal, on, stages

X = normal(8, 4)
WEIGHTS = [normal(4, 4, seed=seed) for seed in (1, 2)]


@contextlib.contextmanager
def cached_in(folder):
    """A folder for JAX's persistent cache, and ours in it."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    for name, value in zip(names, (str(folder), 0.0), strict=True):
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    yield folder / "mmruntime"
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


@pytest.fixture
def empty(tmp_path):
    """A cache with nothing in it."""
    with cached_in(tmp_path) as folder:
        yield folder


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """A folder with what a start of `make_step()` leaves, which takes longest."""
    folder = tmp_path_factory.mktemp("started")
    with cached_in(folder):
        start(make_step())
    return folder


@pytest.fixture
def cache(tmp_path, started):
    """A cache in which the programs of `make_step()` are."""
    shutil.copytree(started, tmp_path, dirs_exist_ok=True)
    with cached_in(tmp_path) as folder:
        yield folder


def layer(w, x, scale=2.0):
    return jnp.tanh(x @ w) * scale


def make_step(first=layer, second=layer):
    def loss(ws, x):
        x = mm.task(first, task=on(0))(ws[0], x)
        return (mm.task(second, task=on(1))(ws[1], mm.with_sharding_constraint(x, P(None, None))) ** 2).sum()

    def step(ws, x):
        value, grads = mm.microbatch(jax.value_and_grad(loss), argnum=1, count=2, schedule="1f1b")(ws, x)
        return jax.tree.map(lambda w, g: w - w.dtype.type(0.1) * g, ws, grads), value

    return step


def start(step, mesh=None, ws=WEIGHTS, x=X, **options):
    """What a program computes that starts now, in bytes, after its numbers were held against those of plain JAX."""
    jax.clear_caches()
    mesh = stages(2, data=2) if mesh is None else mesh
    expected = jax.jit(step)(ws, x)
    found = mm.mjit(step, mesh=mesh, **options)(jax.tree.map(jnp.array, ws), x)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-6), found, expected)
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(found)]


def test_a_second_start_lowers_nothing(empty, lowered):
    first = start(make_step())
    assert len(lowered) > 3
    assert len(list(empty.glob("*.program"))) == len(lowered)
    lowered.clear()
    assert start(make_step()) == first
    assert not lowered


def test_it_loads_what_jaxs_cache_had_before(cache, lowered):
    """An executable that came out of JAX's cache cannot be serialized again; the bytes in the cache can be kept."""
    first = start(make_step())
    kept = {path.name for path in cache.glob("*.program")}
    for path in cache.glob("*.program"):
        path.unlink()
    assert start(make_step()) == first
    assert {path.name for path in cache.glob("*.program")} == kept
    lowered.clear()
    assert start(make_step()) == first
    assert not lowered


def scaled_by(value):
    return lambda w, x: jnp.tanh(x @ w) * value


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(scaled_by(2.0), scaled_by(3.0), id="a number in a closure"),
        pytest.param(layer, lambda w, x: jnp.sin(x @ w) * 2, id="another function"),
        pytest.param(layer, lambda w, x: jnp.tanh(x @ w.T) * 2, id="another parameter of an equation"),
        pytest.param(layer, jax.jit(lambda w, x: jnp.cos(x @ w)), id="another function that is called"),
        pytest.param(layer, lambda w, x: jnp.tanh(jnp.dot(x, w, precision="highest")), id="another precision"),
    ],
)
def test_an_edited_program_is_compiled(cache, lowered, before, after):
    old = start(make_step(second=before))
    lowered.clear()
    new = start(make_step(second=after))
    assert lowered
    assert new != old
    lowered.clear()
    assert start(make_step(second=before)) == old
    assert start(make_step(second=after)) == new


@pytest.mark.parametrize("array", [np.array, jnp.array])
def test_an_edited_array_in_a_closure_is_seen(cache, array):
    """It is an argument of its program, which is the same with any numbers in it."""
    one, other = (array(np.float32([numbers])) for numbers in ([1, 2, 3, 4], [4, 3, 2, 1]))
    old, new = start(make_step(second=scaled_by(one))), start(make_step(second=scaled_by(other)))
    assert old != new
    assert start(make_step(second=scaled_by(one))) == old


def test_another_donation_is_another_program(cache, lowered):
    first = start(make_step())
    lowered.clear()
    assert start(make_step(), donate_argnums=0) == first
    assert lowered
    lowered.clear()
    assert start(make_step(), donate_argnums=0) == first
    assert start(make_step()) == first
    assert not lowered


def test_another_mesh_other_devices_and_other_types_are_other_programs(empty, lowered):
    devices = np.array(jax.devices())
    places = [
        {"mesh": stages(2)},
        {"mesh": stages(2, data=2)},
        {"mesh": stages(2, model=2)},
        {"mesh": mm.MultiMesh(devices=devices[4:6], axis_sizes=(2,), axis_names=("stage",))},
        {"mesh": mm.MultiMesh(devices=devices[[5, 4]], axis_sizes=(2,), axis_names=("stage",))},
        {"x": normal(12, 4)},
        {"x": X.astype(jnp.bfloat16).astype(np.float32)},
    ]
    first = []
    for place in places[:-1]:
        lowered.clear()
        first.append(start(make_step(), **place))
        assert lowered, place
    lowered.clear()
    assert [start(make_step(), **place) for place in places[:-1]] == first
    start(make_step(), **places[-1])
    assert not lowered


def test_settings_and_flags_are_part_of_a_program(cache, lowered, monkeypatch):
    step = make_step()
    start(step)
    lowered.clear()
    with jax.default_matmul_precision("highest"):
        start(step)
        assert lowered
        lowered.clear()
        start(step)
    assert not lowered
    with jax.debug_nans(True):
        start(step)
    assert lowered
    lowered.clear()
    # XLA itself has read its flags when it started; the next process reads them anew.
    monkeypatch.setenv("XLA_FLAGS", os.environ["XLA_FLAGS"] + " --xla_cpu_enable_fast_math=true")
    start(step)
    assert lowered


def test_versions_and_our_own_source_are_part_of_a_program(cache, lowered, monkeypatch):
    step = make_step()
    start(step)
    for module, name in ((_compat, "versions"), (program_cache, "_own_source"), (program_cache, "_processor")):
        lowered.clear()
        monkeypatch.setattr(module, name, lambda: "another")
        start(step)
        assert lowered, name


def halved(text):
    return text[: len(text) // 2]


def changed(text):
    return text[:-50] + bytes([text[-50] ^ 1]) + text[-49:]


def foreign(text):
    """An entry whose digest is right, of something else."""
    import hashlib
    import zlib

    rest = (3).to_bytes(8, "big") + b"abc" + zlib.compress(b"no executable")
    return program_cache._HEAD + hashlib.sha256(rest).digest() + rest


@pytest.mark.parametrize("damage", [halved, changed, foreign, lambda text: b""], ids=["cut", "bit", "foreign", "empty"])
def test_a_damaged_entry_is_compiled_and_replaced(cache, lowered, damage):
    first = start(make_step())
    kept = {path: path.read_bytes() for path in cache.glob("*.program")}
    for path, text in kept.items():
        path.write_bytes(damage(text))
    lowered.clear()
    assert start(make_step()) == first
    assert len(lowered) == len(kept)
    lowered.clear()
    assert start(make_step()) == first
    assert not lowered


def test_what_others_keep_in_the_folder_stays(empty, lowered):
    laid = [
        folder / name for folder in (empty, empty.parent) for name in ("notes.txt", "a.program", "b.tmp", "c-cache")
    ]
    for path in laid:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("precious")
    start(make_step())
    assert list(empty.glob("*.program"))
    assert all(path.read_text() == "precious" for path in laid)


def test_where_nothing_can_be_written_programs_are_compiled(empty, lowered):
    empty.parent.mkdir(exist_ok=True)
    empty.write_text("a file, where the folder would be")
    first = start(make_step())
    assert start(make_step()) == first
    assert empty.is_file()


def test_a_full_disk_leaves_no_parts_of_entries(empty, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    start(make_step())
    assert not list(empty.glob("*.program"))
    assert not list(empty.glob("*.tmp"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("jax_enable_compilation_cache", False),
        ("jax_persistent_cache_min_compile_time_secs", 3600.0),
        ("jax_compilation_cache_max_size", 10**9),
        ("jax_compilation_cache_include_metadata_in_key", True),
        ("jax_compilation_cache_dir", None),
    ],
)
def test_what_jax_is_told_not_to_keep_is_not_kept(empty, lowered, name, value):
    before = getattr(jax.config, name)
    jax.config.update(name, value)
    try:
        compilation_cache.reset_cache()
        start(make_step())
        lowered.clear()
        start(make_step())
        assert lowered
    finally:
        jax.config.update(name, before)
    assert not list(empty.glob("*.program"))


def test_callbacks_are_never_kept(cache, lowered):
    seen = []

    def told(w, x):
        jax.debug.callback(lambda value: seen.append(float(value)), x[0, 0])
        return layer(w, x)

    start(make_step(second=told))
    lowered.clear()
    start(make_step(second=told))
    jax.effects_barrier()
    assert any("stage_1" in name for name in lowered), lowered
    assert seen


def digest_of(fun, *args):
    mesh = stages(1).mesh
    return content_digest(form(jax.make_jaxpr(fun)(*args), mesh), "cpu")


def own_primitive(name, rule):
    primitive = Primitive(name)
    primitive.def_abstract_eval(lambda x: x)
    primitive.def_impl(lambda x: x)
    mlir.register_lowering(primitive, rule)
    return primitive


def test_what_reaches_other_code_has_no_digest(monkeypatch):
    x = jnp.ones((4, 4))
    assert digest_of(jnp.sin, x)
    theirs = own_primitive("theirs", lambda _, value: [value])
    wrapped = own_primitive("sin", mlir.lower_fun(lambda value: value * 2, multiple_results=False))
    pure = functools.partial(jax.pure_callback, np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype))
    ffi = jax.ffi.ffi_call("somewhere", jax.ShapeDtypeStruct(x.shape, x.dtype))
    for fun in (theirs.bind, wrapped.bind, pure, ffi, lambda value: jax.debug.print("{}", value) or value):
        assert digest_of(fun, x) is None
    # A rule of JAX's that somebody has replaced, for this platform only.
    digest = digest_of(jnp.cos, x)
    table = mlir._platform_specific_lowerings["cpu"]
    mine = own_primitive("mine", mlir.lower_fun(lambda value: value, multiple_results=False))
    monkeypatch.setitem(table, jax.lax.cos_p, mlir._lowerings[mine])
    assert digest is not None
    assert digest_of(jnp.cos, x) is None


def test_digests_of_one_step_are_those_of_programs_that_stand_alone():
    """What they have in common is spelled out once, and one that has no digest leaves nothing behind."""
    x, mesh = jnp.ones((4, 4)), stages(1).mesh
    programs = [
        jnp.sin,
        jnp.cos,
        lambda value: jax.nn.relu(value) @ value * 2.0,
        lambda value: jax.nn.relu(value) @ value * 3.0,
        lambda value: jax.debug.print("{}", value) or jax.nn.relu(value) @ value * 2.0,
        lambda value: jax.lax.scan(lambda c, _: (jax.nn.relu(c), None), value, None, length=3)[0],
        jnp.sin,
    ]
    forms, contents = Forms(), ContentDigests()
    shared = [contents.of(forms.of(jax.make_jaxpr(fun)(x), mesh), "cpu") for fun in programs]
    assert shared == [digest_of(fun, x) for fun in programs]
    assert shared[0] == shared[-1]
    assert shared[4] is None
    named = [each for each in shared if each is not None]
    assert len(named) == 6
    assert len(set(named)) == 5


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Pair:
    """A carried value of a type that another process may define otherwise."""

    first: jax.Array
    second: jax.Array


def scan_of(body=lambda c, x: (c * 2 + x, c + x), **options):
    return lambda x: jax.lax.scan(body, x, jnp.stack([x] * 4), **options)


def grouped(carried, scanned):
    """A scan of three like values, of which so many are carried, so many scanned, and the others constants."""

    def program(x):
        values = [jnp.sin(x)] * 3
        carry, xs, consts = values[:carried], values[carried : carried + scanned], values[carried + scanned :]

        def body(carry, xs):
            total = sum(v.sum() for v in jax.tree.leaves((carry, xs, consts)))
            return [c + total for c in carry], [v + total for v in xs]

        return jax.lax.scan(body, carry, xs, length=len(x))

    return program


SCANS = {
    "as it is": scan_of(),
    "another number": scan_of(lambda c, x: (c * 3 + x, c + x)),
    "another result": scan_of(lambda c, x: (c * 2 + x, c)),
    "no result": scan_of(lambda c, x: (c * 2 + x, None)),
    "two results": scan_of(lambda c, x: (c * 2 + x, (c + x, c))),
    "backwards": scan_of(reverse=True),
    "unrolled": scan_of(unroll=2),
    "unrolled further": scan_of(unroll=4),
    "without values": lambda x: jax.lax.scan(lambda c, _: (c * 2, c), x, None, length=4),
    "longer": lambda x: jax.lax.scan(lambda c, _: (c * 2, c), x, None, length=5),
    "carried in bfloat16": lambda x: scan_of()(x.astype(jnp.bfloat16)),
    "carried as a row": lambda x: scan_of()(x[0]),
    "carries three": grouped(3, 0),
    "carries two": grouped(2, 0),
    "carries two of which one is scanned": grouped(2, 1),
    "carries one and scans two": grouped(1, 2),
    "carries one and scans one": grouped(1, 1),
    "of its gradient": lambda x: jax.grad(lambda x: sum(v.sum() for v in scan_of()(x)))(x),
    "of its gradient, recomputed": lambda x: jax.grad(
        lambda x: sum(v.sum() for v in scan_of(jax.checkpoint(lambda c, x: (jnp.sin(c) + x, c * x)))(x))
    )(x),
    "of rows": jax.vmap(lambda row: jax.lax.scan(lambda c, x: (c * x, c), row, jnp.stack([row] * 4))),
    "in a scan": lambda x: jax.lax.scan(lambda c, _: (scan_of()(c)[0], None), x, None, length=2),
}


def constrained(axis, spec):
    mesh = jax.make_mesh((1,), (axis,), (AxisType.Auto,), devices=jax.devices()[:1])
    return lambda x: jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec))


PROGRAMS = SCANS | {
    "sin": jnp.sin,
    "twice": lambda x: jnp.sin(jnp.sin(x)),
    "times zero": lambda x: x * 0.0,
    "times minus zero": lambda x: x * -0.0,
    "sum over rows": lambda x: x.sum(0),
    "sum over columns": lambda x: x.sum(1),
    "first operand": lambda x: jnp.sin(x) - x,
    "second operand": lambda x: x - jnp.sin(x),
    "of another type": lambda x: jnp.sin(x.astype(jnp.bfloat16)),
    "cut over x": constrained("x", P("x")),
    "cut over x, by columns": constrained("x", P(None, "x")),
    "cut over y": constrained("y", P("y")),
    "called": lambda x: jax.jit(jnp.sin)(x) + jax.nn.relu(x),
}
ONES = jnp.ones((4, 4))


def test_programs_that_differ_have_other_digests():
    found = {name: digest_of(fun, ONES) for name, fun in PROGRAMS.items()}
    assert None not in found.values(), found
    assert len(set(found.values())) == len(found), found


def test_programs_have_the_same_digests_in_another_process():
    source = (
        "from tests.runtime.test_program_cache import ONES, PROGRAMS, digest_of\n"
        "print(*[digest_of(fun, ONES) for fun in PROGRAMS.values()])"
    )
    run = subprocess.run(
        [sys.executable, "-c", source],
        env=os.environ | {"PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert run.stdout.split() == [digest_of(fun, ONES) for fun in PROGRAMS.values()]


def lowered_text(fun, *args):
    return jax.jit(fun).lower(*args).as_text()


def test_the_trees_of_a_scan_are_no_part_of_a_program():
    """Lowering reads how many values a group has, and not what they are called in it."""

    def program(x, make):
        def body(carry, _):
            first, second = jax.tree.leaves(carry)
            return make(second * 2, first), None

        return tuple(jax.tree.leaves(jax.lax.scan(body, make(x, x + 1), None, length=3)[0]))

    makers = [lambda a, b: (a, b), lambda a, b: {"a": a, "b": b}, lambda a, b: ((a,), [b]), Pair]
    programs = [functools.partial(program, make=make) for make in makers]
    assert len({lowered_text(fun, ONES) for fun in programs}) == 1
    found = {digest_of(fun, ONES) for fun in programs}
    assert len(found) == 1
    assert None not in found


def solved(factor):
    return lambda x: jax.lax.custom_linear_solve(lambda v: v * factor, x, lambda _, b: b / factor, symmetric=True)


def recomputed(fun, policy):
    return lambda x: jax.grad(lambda x: jax.checkpoint(fun, policy=policy)(x).sum())(x)


def batched_as(fun):
    made = jax.custom_batching.custom_vmap(fun)
    made.def_vmap(lambda size, batched, x: (fun(x), True))
    return made


def over_devices(reduce):
    mesh = stages(1).mesh
    return jax.shard_map(lambda x: reduce(x, "stage"), mesh=mesh, in_specs=P("stage"), out_specs=P())


def laid_out(*order):
    return lambda x: with_layout_constraint(x, Layout(order))


def ragged(rows):
    return lambda x: jax.lax.ragged_dot(x, x[None], jnp.array([rows], jnp.int32))


def keys_of(kind):
    return lambda x: jax.random.key_data(
        jax.random.split(jax.random.wrap_key_data(jnp.zeros(4, jnp.uint32), impl=kind))
    )


dots = jax.checkpoint_policies.dots_saveable
named = jax.checkpoint_policies.save_only_these_names("a")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(lambda x: x @ np.eye(4, dtype=np.float32), lambda x: x @ np.ones((4, 4), np.float32), id="array"),
        pytest.param(lambda x: x[np.array([0, 1])], lambda x: x[np.array([0, 2])], id="indices"),
        pytest.param(solved(2), solved(3), id="jaxprs in a named tuple"),
        pytest.param(
            recomputed(lambda x: jnp.sin(x @ x), dots), recomputed(lambda x: jnp.cos(x @ x), dots), id="remat"
        ),
        pytest.param(
            recomputed(lambda x: jnp.sin(checkpoint_name(jnp.sin(x @ x), "a")), named),
            recomputed(lambda x: jnp.sin(checkpoint_name(jnp.sin(x @ x), "b")), named),
            id="names that are saved",
        ),
        pytest.param(
            lambda x: jax.lax.reduce(x, np.float32(0), lambda a, b: a + 2 * b, (0,)),
            lambda x: jax.lax.reduce(x, np.float32(0), lambda a, b: a + 3 * b, (0,)),
            id="reduction of one's own",
        ),
        pytest.param(batched_as(jnp.sin), batched_as(jnp.cos), id="batching of one's own"),
        pytest.param(lambda x: jax.random.normal(jax.random.key(0), x.shape), jnp.zeros_like, id="a new key"),
        pytest.param(
            keys_of("rbg"),
            keys_of("unsafe_rbg"),
            id="kinds of keys",
        ),
        pytest.param(over_devices(jax.lax.psum), over_devices(jax.lax.pmax), id="shard_map"),
        pytest.param(laid_out(0, 1), laid_out(1, 0), id="layout"),
        pytest.param(ragged(4), ragged(3), id="ragged"),
    ],
)
def test_parameters_of_other_types_are_named(one, other):
    found = digest_of(one, ONES), digest_of(other, ONES)
    assert None not in found
    assert found[0] != found[1]
    assert lowered_text(one, ONES) != lowered_text(other, ONES)


def test_arrays_that_differ_have_other_digests():
    arrays = [
        np.zeros((2, 3), np.float32),
        np.zeros((3, 2), np.float32),
        np.zeros(6, np.float32),
        np.zeros((2, 3), np.int32),
        -np.zeros((2, 3), np.float32),
        np.zeros((2, 3), jnp.bfloat16),
        np.zeros((2, 3), np.float16),
        np.zeros((2, 3), ">f4"),
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.arange(6, dtype=np.float32).reshape(3, 2).T,
    ]
    digests = [content_digest((Identity(array),), "cpu") for array in arrays]
    assert None not in digests
    assert len(set(digests)) == len(arrays)
    for value in (np.array([object()]), jnp.ones(2), np.ma.masked_array([1.0]), jax.random.key(0), 1.0):
        assert content_digest((Identity(value),), "cpu") is None


def test_an_implementation_of_keys_of_somebody_else_has_no_digest():
    rbg = jax.random.key(0, impl="rbg").dtype._impl
    assert content_digest((rbg,), "cpu")
    assert content_digest((rbg._replace(seed=lambda seed: seed),), "cpu") is None


def test_a_key_is_more_than_its_type():
    assert content_digest((jax.random.key(0).dtype,), "cpu")
    assert content_digest((jax.random.key(0),), "cpu") is None


def scanned(w, x):
    return jax.lax.scan(lambda c, row: (jnp.tanh(c @ w) * row.sum(), None), x, jnp.asarray(w))[0]


def masked(w, x):
    return jnp.tanh(x @ w) * np.tril(np.ones((4, 4), np.float32))[: len(x)]


@pytest.mark.parametrize("second", [scanned, masked], ids=["scan", "array of the host"])
def test_a_second_start_with_it_lowers_nothing(cache, lowered, second):
    first = start(make_step(second=second))
    assert lowered
    lowered.clear()
    assert start(make_step(second=second)) == first
    assert not lowered


class Opaque:
    """A value that can be compared, and says nothing."""


@pytest.mark.parametrize(
    "value",
    [Opaque(), Opaque, len, lambda: 0, object(), (1, [Opaque()]), {"a": Opaque()}, frozenset([len]), np.ones(2)],
)
def test_what_is_not_on_the_list_has_no_digest(value):
    assert content_digest((1, value), "cpu") is None


def test_values_that_differ_have_other_digests():
    values = [
        *(
            0,
            False,
            0.0,
            -0.0,
            "0",
            b"0",
            None,
            (),
            [],
            (0,),
            [0],
            ((0,),),
            0j,
            np.float32(0),
            np.float64(0),
            np.int32(0),
        ),
        *(int, float, "int", np.dtype("int32"), np.dtype("int64"), jnp.dtype("bfloat16"), jnp.dtype("float16")),
        *(
            frozenset(),
            frozenset([0]),
            frozenset([False]),
            {},
            {"a": 1},
            {"a": "1"},
            (0, (1, 2)),
            ((0, 1), 2),
            (0, 1, 2),
        ),
        *(P(), P(None), P("a"), P("a", "b"), P(("a", "b")), P(P.UNCONSTRAINED), P(unreduced={"a"})),
        *(jax.typeof(np.float32(1)), jax.typeof(1.0), jax.typeof(np.ones(1, np.float32)), jax.lax.Precision.HIGH),
        *(jax.random.key(0).dtype, jax.random.key(0, impl="rbg").dtype, jax.sharding.AxisType.Auto, jax.lax.sin_p),
        jax.lax.cos_p,
    ]
    digests = [content_digest(value, "cpu") for value in values]
    assert None not in digests, values[digests.index(None)]
    assert len(set(digests)) == len(values)
    assert len({content_digest(tuple(values), "cpu"), content_digest((*values[:-1], jax.lax.sin_p), "cpu")}) == 2


# Starts of a program of its own, of which two may run at once.
PROGRAM = """
    import sys, json
    import jax, jax.numpy as jnp, numpy as np
    import mmruntime as mm
    mm.init(cache=sys.argv[1])
    from mmruntime._execution import compile as c
    names, lower = [], c._lower
    c._lower = lambda *args: names.append(args[-1]) or lower(*args)

    def loss(ws, x):
        for i, w in enumerate(ws):
            x = mm.task(lambda w, x: jnp.tanh(x @ w), task=mm.stage(i, len(ws), axis="stage"))(w, x)
        return (x**2).sum()

    def step(ws, x):
        value, grads = mm.microbatch(jax.value_and_grad(loss), argnum=1, count=2, schedule="1f1b")(ws, x)
        return jax.tree.map(lambda w, g: w - np.float32(0.1) * g, ws, grads), value

    ws = [np.random.default_rng(i).normal(size=(4, 4)).astype(np.float32) for i in range(2)]
    x = np.ones((4, 4), np.float32)
    mesh = mm.MultiMesh(axis_sizes=(2,), axis_names=("stage",))
    results = jax.tree.leaves(mm.mjit(step, mesh=mesh)(ws, x))
    print(json.dumps({"results": [np.asarray(leaf).tobytes().hex() for leaf in results], "lowered": names}))
"""


def open_process(folder: Path, devices: int, seed: int):
    flags = [flag for flag in os.environ["XLA_FLAGS"].split() if "device_count" not in flag]
    environment = {
        **{
            key: value for key, value in os.environ.items() if not key.startswith(("JAX_PERSISTENT", "JAX_COMPILATION"))
        },
        "XLA_FLAGS": " ".join([*flags, f"--xla_force_host_platform_device_count={devices}"]),
        "PYTHONHASHSEED": str(seed),
    }
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(folder)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def said(process):
    out, error = process.communicate(timeout=240)
    assert process.returncode == 0, out + error
    return json.loads(out.splitlines()[-1])


def test_processes_at_once_and_one_after_them(tmp_path):
    first, second = map(said, [open_process(tmp_path, 2, seed) for seed in (1, 2)])
    third = said(open_process(tmp_path, 2, 3))
    assert first["results"] == second["results"] == third["results"]
    # Either may have been so much faster that the other found all that it needs.
    assert first["lowered"] or second["lowered"]
    assert not third["lowered"]
    assert not list((tmp_path / "mmruntime").glob("*.tmp"))
    # With more devices on the host, the same two of them are another place.
    other = said(open_process(tmp_path, 4, 4))
    assert other["results"] == first["results"]
    assert other["lowered"]
