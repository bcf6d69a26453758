"""The switches: what each does, when it is decided, and that it is restored."""

import contextlib
import fnmatch
import itertools
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import mmruntime as mm
from mmruntime import _compat
from mmruntime._core import switches as _contexts
from tests.runtime.helpers import new_objects_alone

STATES = {
    mm.autoshard: _contexts.autoshard_enabled,
    mm.enable_fast_path: _contexts.fast_path_enabled,
    mm.enable_recomputation: _contexts.recomputation_enabled,
    mm.ignore_transforms: _contexts.transforms_ignored,
}


def make_mesh() -> mm.MultiMesh:
    return mm.MultiMesh(axis_sizes=(2, 4), axis_names=("stage", "data"))


def two_stages(x):
    """Two named tasks and a constraint; the mask is cheap and used by both."""
    mask = jnp.arange(8.0) > 3.0
    for index in range(2):

        def layer(x, mask):
            return mm.with_sharding_constraint(jnp.where(mask, jnp.cos(x), x), P("data"))

        x = mm.task(layer, f"layer_{index}", mesh_slice={"stage": index})(x, mask)
    return x


SWITCHED_OFF = pytest.mark.parametrize(
    "switch", [mm.ignore_transforms, lambda: mm.autoshard(False)], ids=["ignored", "off"]
)

X = np.linspace(0.0, 1.0, 8, dtype=np.float32)


@pytest.mark.parametrize("switch", STATES, ids=lambda switch: switch.__name__)
def test_switches_nest_and_are_restored_on_exceptions(switch) -> None:
    state = STATES[switch]
    before = state()
    with switch(not before):
        assert state() is not before
        with switch(None):
            assert state() is not before
        with pytest.raises(RuntimeError, match="inside"), switch(before):
            assert state() is before
            raise RuntimeError("inside")
        assert state() is not before
    assert state() is before


def test_context_sets_what_is_given_and_leaves_the_rest() -> None:
    with mm.context(autoshard=False, ignore_transforms=True):
        assert [state() for state in STATES.values()] == [False, True, True, True]
        with mm.context(enable_recomputation=False, enable_fast_path=False, autoshard=True):
            assert [state() for state in STATES.values()] == [True, False, False, True]
    assert [state() for state in STATES.values()] == [True, True, True, False]


@pytest.mark.parametrize("switch", STATES, ids=lambda switch: switch.__name__)
def test_switches_take_flags_only(switch) -> None:
    with pytest.raises(TypeError, match=rf"{switch.__name__}: \w+ must be True, False or None \(no change\), got 1."):
        switch(1).__enter__()


def test_ignored_transforms_give_the_one_device_program_decided_at_the_call() -> None:
    mesh = make_mesh()
    mesh.register_task("extra", task=mm.Task(mesh_slice={"stage": 1}))

    @jax.named_scope("extra")
    def extra(x):
        return x + 1

    step = mm.mjit(lambda x: extra(two_stages(x)), mesh=mesh)
    expected = np.asarray(jax.jit(lambda x: extra(two_stages(x)))(X))
    placed = step(X)
    assert placed.devices() == set(mesh.devices[1])
    with mm.ignore_transforms():
        ignored = step(X)
        assert ignored.devices() == set(mesh.devices.flat)
        assert ignored.sharding.spec == P("data")
        with mm.ignore_transforms(False):
            assert step(X).devices() == set(mesh.devices[1])
    assert step(X).devices() == set(mesh.devices[1])
    for out in (placed, ignored):
        np.testing.assert_allclose(out, expected, rtol=1e-6)


def test_ignored_transforms_are_seen_by_plain_jit_without_clearing_caches() -> None:
    def number_of_traces() -> int:
        calls = []

        @jax.jit
        def step(x):
            calls.append(1)
            return mm.microbatch(lambda x: x.sum(), size=2)(x) if len(calls) else x

        step(X)
        with mm.ignore_transforms():
            step(X)
        step(X)
        return len(calls)

    # JAX's keys before a process has entered a context for the first time are not those after it has left one.
    number_of_traces()
    assert number_of_traces() == 2


def test_without_autoshard_constraints_are_over_mesh_axes() -> None:
    """As `jax.lax.with_sharding_constraint` has them, in the submesh of each task."""
    mesh = mm.MultiMesh(axis_sizes=(2, 4), axis_names=("stage", "data"), logical_axes={"data": None, "rows": "data"})
    step = mm.mjit(two_stages, mesh=mesh)
    assert step(X).sharding.spec == P()
    with mm.autoshard(False):
        out = step(X)
        assert out.sharding.spec == P("data")
        assert out.devices() == set(mesh.devices[1])
    assert step(X).sharding.spec == P()


@SWITCHED_OFF
@pytest.mark.parametrize("how", ["mjit", "jit", "eager", "grad", "vmap"])
def test_switched_off_constraints_are_those_of_jax(switch, how) -> None:
    mesh = make_mesh()

    def constrained(x):
        return mm.with_sharding_constraint({"a": [x, x + 1]}, {"a": P("data")})["a"][1] * 2

    with switch():
        if how == "mjit":
            out = mm.mjit(constrained, mesh=mesh)(X)
        elif how == "vmap":
            out = mm.mjit(jax.vmap(constrained), mesh=mesh)(np.stack([X, X]))
        elif how == "grad":
            out = mm.mjit(jax.grad(lambda x: constrained(x).sum()), mesh=mesh)(X)
        else:
            with mesh:
                out = (jax.jit(constrained) if how == "jit" else constrained)(X)
    spec = P(None, "data") if how == "vmap" else P("data")
    assert out.sharding.is_equivalent_to(jax.sharding.NamedSharding(mesh.mesh, spec), out.ndim)
    with jax.set_mesh(mesh.mesh), switch():
        assert jax.jit(constrained)(X).sharding.spec == P("data")


# What of a spec is over axes of the mesh, which are "stage" and "data"; None where nothing is.
SPECS = {
    P("rows"): None,
    P(("rows", "columns"), "rows"): None,
    P("rows", "data"): P(None, "data"),
    P(("stage", "rows", "data")): P(("stage", "data")),
    ("rows", ("data",)): P(None, "data"),
}


@SWITCHED_OFF
@pytest.mark.parametrize("how", ["mjit", "task", "grad", "jit", "eager", "set_mesh", "no mesh"])
def test_logical_names_have_no_effect_where_names_are_mesh_axes(switch, how) -> None:
    mesh = mm.MultiMesh(
        axis_sizes=(2, 4), axis_names=("stage", "data"), logical_axes=dict.fromkeys(("rows", "columns"))
    )
    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    for spec, over in SPECS.items():

        def constrained(x, spec=spec):
            return mm.with_sharding_constraint({"a": x}, spec)["a"] ** 2

        ways = {
            "mjit": mm.mjit(constrained, mesh=mesh),
            "task": mm.mjit(mm.task(constrained, mesh_slice={}, logical_axes={"rows": "data"}), mesh=mesh),
            "grad": mm.mjit(jax.grad(lambda x, spec=spec: constrained(x, spec).sum() / 2), mesh=mesh),
            "jit": mesh(jax.jit(constrained)),
            "eager": mesh(constrained),
            "set_mesh": jax.jit(constrained),
            "no mesh": jax.jit(constrained),
        }
        with switch(), jax.set_mesh(mesh.mesh) if how == "set_mesh" else contextlib.nullcontext():
            out = ways[how](x)
        np.testing.assert_array_equal(out, x if how == "grad" else x**2)
        if how == "no mesh":
            assert len(out.devices()) == 1
        elif over is not None:
            assert out.sharding.is_equivalent_to(jax.sharding.NamedSharding(mesh.mesh, over), 2)


@SWITCHED_OFF
def test_switched_off_constraints_have_the_errors_of_jax(switch) -> None:
    def named(*spec):
        return lambda x: mm.with_sharding_constraint(x, P(*spec))

    x, mesh = np.ones((4, 4), np.float32), make_mesh()
    with switch():
        for call in (mm.mjit(named("data", "data"), mesh=mesh), mesh(jax.jit(named("data", "data")))):
            with pytest.raises(Exception, match="at most one positional dimension") as caught:
                call(x)
            assert type(caught.value).__name__ == "DuplicateSpecError"
        with mesh, pytest.raises(ValueError, match="are not a prefix of the value's tree"):
            mm.with_sharding_constraint([x, x], [P("data")])
        for call in (mm.mjit(named("data", None, "rows"), mesh=mesh), mesh(named("data", None, "rows"))):
            with pytest.raises(ValueError) as raised:
                call(x)
            assert "prefix" not in str(raised.value)


def test_a_name_that_is_neither_an_axis_nor_a_logical_name_is_told_without_autoshard() -> None:
    layer = mm.task(lambda x: mm.with_sharding_constraint(x, P("row")), "layer", mesh_slice={"stage": 1})
    step = mm.mjit(
        layer, mesh=mm.MultiMesh(axis_sizes=(2, 4), axis_names=("stage", "data"), logical_axes={"rows": None})
    )
    with mm.autoshard(False), pytest.warns(UserWarning, match="'row' is in no logical_axes.* did you mean 'rows'"):
        step(X)


def test_an_eager_task_without_autoshard_has_mesh_axes() -> None:
    layer = mm.task(
        lambda x: mm.with_sharding_constraint(x * 2, P("data")), "layer", mesh_slice={"stage": 1}, logical_axes=()
    )
    mesh = make_mesh()
    with mesh:
        assert layer(X).sharding.is_fully_replicated
        with mm.autoshard(False):
            out = layer(X)
    assert out.sharding.spec == P("data")
    assert out.devices() == set(mesh.devices[1])


def test_a_jitted_helper_is_traced_for_each_meaning_of_a_constraint() -> None:
    helper = jax.jit(lambda x: mm.with_sharding_constraint(x, P("data")))
    mesh = make_mesh()
    step = mm.mjit(mm.task(helper, "layer", mesh_slice={"stage": 1}), mesh=mesh)
    with mesh, mm.autoshard(False):
        assert helper(X).devices() == set(mesh.devices.flat)
        assert step(X).devices() == set(mesh.devices[1])
        assert helper(X).devices() == set(mesh.devices.flat)


def test_recomputation_decides_whether_cheap_values_are_sent() -> None:
    step = mm.mjit(two_stages, mesh=make_mesh())
    expected = np.asarray(step(X))
    arrays = [sum(row.arrays for row in step.explain().transfers)]
    with mm.enable_recomputation(False):
        np.testing.assert_array_equal(step(X), expected)
        arrays.append(sum(row.arrays for row in step.explain().transfers))
    assert arrays == [1, 2]


def test_fast_path_decides_whether_one_submesh_is_one_program() -> None:
    def step(x):
        return mm.microbatch(mm.task(lambda x: (x * x).sum(), mesh_slice={"stage": 0}), size=2)(x)

    compiled = mm.mjit(step, mesh=make_mesh())

    def instructions() -> int:
        return len(compiled.latest_plan.program.instructions)

    fast = compiled(X)
    assert instructions() == 1
    with mm.enable_fast_path(False):
        slow = compiled(X)
        assert instructions() > 4
    np.testing.assert_allclose(fast, slow, rtol=1e-6)


def test_small_inputs_are_replicated() -> None:
    mesh = make_mesh()

    def step(small, large):
        return mm.task(
            lambda small, large: (
                mm.with_sharding_constraint(small, P("data")),
                mm.with_sharding_constraint(large, P("data")),
            ),
            mesh_slice={"stage": 0},
        )(small, large)

    compiled = mm.mjit(step, mesh=mesh)

    def specs() -> list[str]:
        compiled(X[:4], X)
        return [row.spec for row in compiled.explain().inputs]

    assert specs() == ["P('data',)", "P('data',)"]
    with mm.replicate_parameters_smaller_than_num_elements(8):
        assert specs() == ["P()", "P('data',)"]
    assert specs() == ["P('data',)", "P('data',)"]
    with pytest.raises(RuntimeError), mm.replicate_parameters_smaller_than_num_elements(9):
        assert specs() == ["P()", "P()"]
        raise RuntimeError
    mm.replicate_parameters_smaller_than_num_elements(8)
    assert specs() == ["P()", "P('data',)"]
    mm.replicate_parameters_smaller_than_num_elements(0)
    assert specs() == ["P('data',)", "P('data',)"]


def test_replication_needs_a_count() -> None:
    with pytest.raises(ValueError, match="expected a number of elements, 0 or more, got -1"):
        mm.replicate_parameters_smaller_than_num_elements(-1)


def test_shardings_of_an_explicit_mesh_are_errors_that_say_what_to_write() -> None:
    """Programs written for `jax.make_mesh`, whose axes are explicit, ask for layouts in the types of arrays."""
    x, mesh = np.ones((4, 4), np.float32), make_mesh()
    wrong = {
        r"jax.sharding.reshard at .*test_contexts.py:\d+ .*explicit mesh.*write mm.reshard in its place": [
            lambda x: jax.sharding.reshard(x, jax.typeof(x).sharding)
        ],
        r"The call at .*test_contexts.py:\d+ .*PartitionSpec of an explicit mesh.*write mm.reshard, or out_": [
            lambda x: jax.sharding.reshard(x, P("data", None)),
            lambda x: jnp.einsum("ab,bc->ac", x, x, out_sharding=P("data", None)),
        ],
        r"jax.device_put at .*test_contexts.py:\d+ .*leave the call out": [lambda x: jax.device_put(x, P("data"))],
        r"jax.jit at .*test_contexts.py:\d+ .*leave the sharding out": [
            lambda x: jax.jit(jnp.sin, out_shardings=P("data"))(x)
        ],
        r"jax.shard_map at .*test_contexts.py:\d+ .*write mm.shard_map": [
            lambda x: jax.shard_map(jnp.sin, in_specs=P("data"), out_specs=P("data"))(x)
        ],
        r"explicit_axes at .*test_contexts.py:\d+ .*call its function itself": [
            lambda x: jax.sharding.explicit_axes(jnp.sin, in_sharding=P("data"))(x)
        ],
    }
    for message, functions in wrong.items():
        for function in functions:
            with pytest.raises((ValueError, RuntimeError), match=message):
                mm.mjit(function, mesh=mesh)(x)
    # The advice, followed.
    np.testing.assert_array_equal(mm.mjit(lambda x: mm.with_sharding_constraint(x, P("data", None)), mesh=mesh)(x), x)


def test_reshard_is_that_of_jax_and_in_a_step_a_constraint() -> None:
    x, mesh = np.ones((4, 4), np.float32), make_mesh()
    explicit = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(explicit):
        cut = mm.reshard(jnp.asarray(x), P("data"))
        assert jax.typeof(cut).sharding.spec == P("data", None)
        again = jax.jit(lambda x: mm.reshard(x, jax.typeof(cut).sharding))(x)
        assert again.sharding == cut.sharding

        def step(x):
            x = mm.task(lambda x: mm.reshard(x, P("data")), mesh_slice={"stage": 1})(x)
            return x, mm.reshard({"x": x * 2}, jax.typeof(x).sharding)

        first, second = mm.mjit(step, mesh=mesh)(cut)
    assert first.devices() == set(mesh.devices[1])
    assert first.sharding.spec == P("data")
    np.testing.assert_array_equal(second["x"], x * 2)
    assert mm.out_sharding(P("data")) == P("data")
    product = mm.mjit(lambda x: jnp.einsum("ab,bc->ac", x, x, out_sharding=mm.out_sharding(P("data"))), mesh=mesh)(x)
    np.testing.assert_array_equal(product, x @ x)
    with pytest.raises(ValueError, match=r"reshard: .*names 3 dimensions, but the value has 2"):
        mm.mjit(lambda x: mm.reshard(x, P("data", None, None)), mesh=mesh)(x)


# Two values of each, as others may have set either.
SETTINGS = {
    "jax_debug_nans": (True, False),
    "jax_default_matmul_precision": ("highest", "bfloat16"),
    "jax_enable_x64": (True, False),
    "jax_legacy_prng_key": ("error", "allow"),
    "jax_numpy_dtype_promotion": ("standard", "strict"),
    "jax_numpy_rank_promotion": ("allow", "raise"),
    "jax_random_seed_offset": (3, 0),
    "jax_softmax_custom_jvp": (True, False),
    "jax_threefry_partitionable": (True, False),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_steps_are_traced_again_where_a_setting_of_jax_changes(setting) -> None:
    traced: list[object] = []

    def step(x):
        traced.append(getattr(jax.config, setting))
        return two_stages(x)

    compiled = mm.mjit(step, mesh=make_mesh())
    before = getattr(jax.config, setting)
    other = next(value for value in SETTINGS[setting] if value != before)
    compiled(X)
    try:
        jax.config.update(setting, other)
        compiled(X)
    finally:
        jax.config.update(setting, before)
    compiled(X)
    # A step may be traced more than once for one plan, but each plan once only.
    assert [value for value, _ in itertools.groupby(traced)] == [before, other]


def test_a_seed_offset_changes_what_a_step_draws() -> None:
    step = mm.mjit(lambda x: two_stages(x) + jax.random.normal(jax.random.key(0), x.shape), mesh=make_mesh())
    before = step(X)
    try:
        jax.config.update("jax_random_seed_offset", 3)
        other = step(X)
    finally:
        jax.config.update("jax_random_seed_offset", 0)
    assert not np.allclose(before, other)
    np.testing.assert_array_equal(step(X), before)


def leaks_of(call, *args) -> str:
    """What `jax.checking_leaks()` says of a call; it looks at all that lives."""
    try:
        with new_objects_alone(), jax.checking_leaks():
            call(*args)
    except Exception as error:
        return str(error)
    return ""


KEPT: list[object] = []


@pytest.mark.family(4)
@pytest.mark.parametrize("reduce", ["exact", "sum", {"loss": "sum"}, None], ids=str)
@pytest.mark.parametrize("is_leak", [False, True], ids=["right", "leak"])
def test_leaks_are_those_of_the_program(reduce, is_leak) -> None:
    def layer(w, x):
        if is_leak:
            KEPT.append(x)
        return jnp.tanh(x @ w)

    def loss(params, x):
        for index, w in enumerate(params):
            x = mm.task(layer, task=mm.stage(index, 2, axis="stage"))(w, x)
        return {"loss": (x**2).sum()}

    def step(params, x):
        return (loss if reduce is None else mm.microbatch(loss, size=2, argnum=1, reduce=reduce))(params, x)

    try:
        found = leaks_of(
            mm.mjit(step, mesh=make_mesh()), [np.ones((2, 2), np.float32)] * 2, np.ones((8, 2), np.float32)
        )
    finally:
        KEPT.clear()
    assert ("Leaked trace" in found) == is_leak == bool(found)


def test_names_of_settings_are_found_where_jax_gives_none(monkeypatch) -> None:
    """As before jaxlib 0.10.2, with which `.ci/lowest` runs steps."""
    values = _compat.settings()
    names = dict(zip(_compat.setting_names(), values, strict=True))
    monkeypatch.setattr(
        _compat.configuration.config, "trace_context_names", lambda: (_ for _ in ()).throw(NotImplementedError)
    )
    _compat.configuration._settings_of_steps.cache_clear()
    try:
        found = dict(zip(_compat.setting_names(), _compat.settings(), strict=True))
    finally:
        _compat.configuration._settings_of_steps.cache_clear()
    assert {name: value for name, value in found.items() if not name.isdigit()}.items() <= names.items()
    assert {name for name in names if name.startswith("jax_")} <= found.keys()
    monkeypatch.undo()
    assert _compat.settings() == values


PAGE = Path(__file__).resolve().parents[2] / "docs" / "settings.md"
# The table of the page: patterns of names, and what is said of them.
SECTION = PAGE.read_text(encoding="utf-8").partition("## Settings of JAX")[2].partition("\n## ")[0]
ROWS = [
    (re.findall("`(.*?)`", row[1]), row[2])
    for row in re.finditer(r"^\| ((?:`|all others).*?) \| (.*) \|$", SECTION, re.MULTILINE)
]


def said_of(setting: str) -> str:
    return next(said for names, said in ROWS if not names or any(fnmatch.fnmatch(setting, name) for name in names))


def test_the_page_says_of_each_setting_when_a_step_is_planned_anew() -> None:
    compared = {name for name in _compat.setting_names() if name in jax.config.values}
    said = {name for name in jax.config.values if "planned anew" in said_of(name)}
    own = {"jax_disable_jit", "jax_scan3", "jax_enable_pgle", "jax_pgle_profiling_runs"}
    own |= {name for name in jax.config.values if name.startswith("jax_error_checking")}
    assert sorted(compared - own) == sorted(said)


def test_other_settings_change_a_step_that_is_traced_as_little_as_jit() -> None:
    """Those that are on or off, and may change while JAX runs."""
    traced: list[int] = []

    def fun(x):
        traced.append(1)
        return jnp.sin(x) * 2

    one_device = mm.MultiMesh(axis_sizes=(1,), axis_names=("data",))
    plain, steps = jax.jit(fun), [mm.mjit(fun, mesh=mesh) for mesh in (make_mesh(), one_device)]
    expected = [np.asarray(call(X)) for call in (plain, *steps) for _ in range(3)][::3]
    count, tried = len(traced), 0
    for name, before in sorted(jax.config.values.items()):
        if not isinstance(before, bool) or said_of(name) != ROWS[-1][1]:
            continue
        with contextlib.suppress(RuntimeError):
            try:
                jax.config.update(name, not before)
                for call, value in zip((plain, *steps), expected, strict=True):
                    np.testing.assert_array_equal(call(X), value, name)
                    assert len(traced) == count, (name, call)
                tried += 1
            finally:
                jax.config.update(name, before)
    assert tried > 20
    assert len(traced) == count


def test_misses_of_the_cache_of_plans_are_explained(caplog) -> None:
    step = mm.mjit(lambda p, x: x * p["scale"], mesh=make_mesh())
    scale = np.float32(2)
    with jax.explain_cache_misses(True):
        step({"scale": scale}, X)
        step({"scale": scale}, X[:4])
        step({"scale": scale}, X)
        with jax.default_matmul_precision("highest"):
            step({"scale": scale}, X)
    found = [record.getMessage() for record in caplog.records if record.name == "mmruntime"]
    assert [message.partition("planned anew: ")[2] for message in found if "planned anew" in message] == [
        "it is the first call.",
        "x is float32[4], and was float32[8].",
        "jax_default_matmul_precision is highest, and was None.",
    ]


def test_static_arguments_that_cannot_be_compared_are_planned_apart() -> None:
    class Single:
        __hash__ = object.__hash__

        def __eq__(self, other: object) -> bool:
            raise TypeError

    step = mm.mjit(lambda x, _: x + 1, mesh=make_mesh(), static_argnums=1)
    for _ in range(2):
        step(X, Single())
    assert step.num_plans == 2


def test_settings_that_cannot_be_kept_are_refused_by_their_names() -> None:
    mesh = make_mesh()
    try:
        jax.config.update("jax_error_checking_behavior_nan", "raise")
        with pytest.raises(ValueError, match=r"under jax_error_checking_behavior_nan JAX keeps .* Set it to 'ignore'"):
            mm.mjit(jnp.log, mesh=mesh)(X)
    finally:
        jax.config.update("jax_error_checking_behavior_nan", "ignore")
    try:
        jax.config.update("jax_scan3", True)
        with pytest.raises(ValueError, match=r"under jax_scan3 JAX rewrites the loop at .* Switch it off"):
            mm.mjit(
                lambda x: mm.microbatch(jax.value_and_grad(lambda x: (x * x).sum()), size=2, argnum=0)(x), mesh=mesh
            )(X)
    finally:
        jax.config.update("jax_scan3", False)


def test_what_adds_to_the_keys_of_jit_is_made_at_once():
    folder = Path(mm.__file__).parent
    made = [path for path in folder.rglob("*.py") if "= _compat.user_context(" in path.read_text()]
    # Old meshes are imported at the top of a module, by `mmruntime.compat`.
    assert {path.relative_to(folder).as_posix() for path in made} == {"_core/switches.py", "_old_jax/mesh_context.py"}


# Flax's way to make a sharded state: layouts of what is traced first, whose tree has objects that `init` makes.
FIRST_TASK = """\
import jax, jax.numpy as jnp
import mmruntime as mm
import flax.linen as nn
import optax
from flax.training.train_state import TrainState

class Model(nn.Module):
    @nn.compact
    def __call__(self, x):
        for i in range(2):
            x = mm.task(nn.Dense(4), task=mm.stage(i, 2, axis="stage"))(x)
        return x

model = Model()

def init(key, x):
    return TrainState.create(apply_fn=model.apply, params=model.init(key, x)["params"], tx=optax.sgd(0.1))

given = jax.random.key(0), jnp.ones((2, 4))
mesh = jax.make_mesh((1,), ("data",))
layouts = nn.get_sharding(jax.eval_shape(init, *given), mesh)
print(jax.jit(init, out_shardings=layouts)(*given).step)
"""


@pytest.mark.slow
def test_the_first_task_of_a_program_has_nothing_traced_once_more():
    result = subprocess.run([sys.executable, "-c", FIRST_TASK], capture_output=True, text=True, check=False)
    assert result.stdout == "0\n", result.stderr
