"""Programs that the next start takes from disk before they are lowered: only those that are the same."""

import functools
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.sharding import PartitionSpec as P

import mmruntime as mm
from mmruntime import _compat
from mmruntime._execution import kept_programs
from mmruntime._jaxpr.content import ContentDigests, content_digest
from mmruntime._jaxpr.equal import Forms, form
from tests.runtime.helpers import normal, on, stages

pytestmark = pytest.mark.both_versions("what JAX's values are made of, and how executables are loaded")

X = normal(8, 4)
WEIGHTS = [normal(4, 4, seed=seed) for seed in (1, 2)]


@pytest.fixture
def cache(tmp_path):
    """A folder for JAX's persistent cache, and ours in it."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    for name, value in zip(names, (str(tmp_path), 0.0), strict=True):
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    yield tmp_path / "mmruntime"
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


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


def test_a_second_start_lowers_nothing(cache, lowered):
    first = start(make_step())
    assert len(lowered) > 3
    assert len(list(cache.glob("*.program"))) == len(lowered)
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


def test_another_mesh_other_devices_and_other_types_are_other_programs(cache, lowered):
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
    for module, name in ((_compat, "versions"), (kept_programs, "_own_source"), (kept_programs, "_processor")):
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
    return kept_programs._HEAD + hashlib.sha256(rest).digest() + rest


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


def test_where_nothing_can_be_written_programs_are_compiled(cache, lowered):
    cache.parent.mkdir(exist_ok=True)
    cache.write_text("a file, where the folder would be")
    first = start(make_step())
    assert start(make_step()) == first
    assert cache.is_file()


def test_a_full_disk_leaves_no_parts_of_entries(cache, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    start(make_step())
    assert not list(cache.glob("*.program"))
    assert not list(cache.glob("*.tmp"))


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
def test_what_jax_is_told_not_to_keep_is_not_kept(cache, lowered, name, value):
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
    assert not list(cache.glob("*.program"))


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
    # JAX 0.12 says of a scan in a type of its own how its operands are grouped, which has no digest.
    named = [each for each in shared if each is not None]
    assert len(named) >= 5
    assert len(set(named)) == len(named) - 1


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
