"""A pass returns what it decides and changes nothing that it was given."""

import dataclasses
import functools
import importlib
import inspect
import pkgutil
from collections.abc import Mapping
from dataclasses import FrozenInstanceError

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import mmruntime as mm
from mmruntime import _partition
from mmruntime._compat import is_var
from mmruntime._core.mesh import using as mesh_in_use
from mmruntime._partition.tracing.trace import trace
from mmruntime._step import plan, step_state
from tests.runtime.helpers import WIDTH, layer, normal, on, sgd, squares, stages, weights

pytestmark = [pytest.mark.quick, pytest.mark.family]

# A finished value may remember what was looked up in it, and `PropagatedLayouts` what was asked of a step's equations.
MEMOS = ("_seen", "_reads", "_writes", "_known", "_plain", "forms", "contents", "plain")


def snapshot(value):
    """All that can be reached from a value of ours; objects of JAX, which are never changed, by identity."""
    kind = type(value)
    if value is None or isinstance(value, str | int | float):
        return value
    if is_var(value):
        return id(value)
    if isinstance(value, Mapping):
        return kind, tuple((snapshot(key), snapshot(item)) for key, item in value.items())
    if kind in (list, tuple):
        return kind, tuple(map(snapshot, value))
    if kind in (set, frozenset):
        return kind, frozenset(map(id, value))
    if hasattr(value, "primitive") and hasattr(value, "invars"):
        variables = tuple(map(id, (*value.invars, *value.outvars)))
        return id(value), value.primitive, variables, tuple((key, id(item)) for key, item in value.params.items())
    if kind.__module__.startswith("mmruntime.") and not callable(value):
        fields = [field.name for field in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else vars(value)
        return id(value), tuple((name, snapshot(getattr(value, name))) for name in fields if name not in MEMOS)
    return id(value)


def watch(function, ran):
    """The function, checked to leave its arguments as they are; adds its name to `ran`."""

    @functools.wraps(function)
    def run(*args, **kwargs):
        before = snapshot((args, kwargs))
        result = function(*args, **kwargs)
        assert snapshot((args, kwargs)) == before, f"{function.__name__} changed its arguments"
        ran.add(function.__name__)
        return result

    return run


@pytest.fixture
def ran(monkeypatch):
    """Watches every public function of the passes, wherever it is called; the names of those that ran."""
    names = set()
    found = pkgutil.walk_packages(_partition.__path__, f"{_partition.__name__}.")
    modules = [plan, step_state, *(importlib.import_module(each.name) for each in found)]
    for module in modules:
        for name, value in list(vars(module).items()):
            home = getattr(value, "__module__", None) or ""
            is_pass = home.startswith(("mmruntime._partition.", "mmruntime._execution.", "mmruntime._step.signature"))
            if inspect.isfunction(value) and is_pass and not name.startswith("_"):
                monkeypatch.setattr(module, name, watch(value, names))
    return names


def train(loss, schedule="gpipe", count=4):
    def step(params, batch):
        value, grads = mm.microbatch(jax.value_and_grad(loss), argnum=1, count=count, schedule=schedule)(params, batch)
        norm = jnp.sqrt(sum((g**2).sum() for g in jax.tree.leaves(grads)))
        return sgd(params, jax.tree.map(lambda g: g / (1 + norm), grads)), value

    return step


def shared_and_named(params, batch):
    def block(own, shared, x):
        x = mm.with_sharding_constraint(layer(shared, x), P("batch", "hidden"))
        return layer(own, x)

    x = batch["x"]
    for index in range(2):
        task = mm.Task(mesh_slice={"stage": index}, logical_axes=[("batch", "data"), ("hidden", None)])
        x = mm.task(block, name=f"block_{index}", task=task)(params[index], params[2], x)
    return squares(x, batch["y"])


def in_two_stages(params, batch):
    x = batch["x"]
    for index in range(2):
        x = mm.task(layer, task=on(index))(params[index], x)
    return squares(x, batch["y"])


def roaming(params, batch):
    task = mm.Task(name="first", loop_dependent_mesh_slice=lambda k: {"stage": k % 2})
    x = mm.task(layer, task=task)(params[0], batch["x"])
    return squares(mm.task(layer, task=on(1))(params[1], x), batch["y"])


def on_one_submesh(params, batch):
    x = mm.task(layer, task=on(0))(params[0], batch["x"])
    return squares(x, batch["y"])


def without_a_loop(params, batch):
    grads = jax.grad(in_two_stages)(params, batch)
    return sgd(params, grads), batch["x"]


ALWAYS = {"trace", "carried_state", "place", "segment", "lay_out_inputs"}
ALWAYS |= {"remove_dead_code", "compile_program", "owned_slots"}
CUT = {"schedule_loops", "propagate_segments", "build"}
# Each program, the axes inside of a stage, and passes that have something to do for it.
PROGRAMS = {
    "halves": (train(shared_and_named, "zb-h1"), {"data": 2}, CUT | {"split_backward", "split_loop_sums", "propagate"}),
    "replicas": (train(in_two_stages, "dualpipe"), {}, CUT | {"expand_replicas"}),
    "variants": (train(roaming), {}, CUT | {"expand_variants"}),
    "no_loop": (without_a_loop, {"data": 2}, CUT | {"regroup_scalars"}),
    "whole": (train(on_one_submesh), {}, {"compute_results", "propagate_whole", "build_whole"}),
}


def arguments():
    return weights(3), {"x": normal(8, WIDTH), "y": normal(8, WIDTH, seed=1)}


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_pass_changes_its_arguments(name, ran):
    step, axes, special = PROGRAMS[name]
    with mm.replicate_parameters_smaller_than_num_elements(WIDTH * WIDTH + 1):
        mm.mjit(step, mesh=stages(2, **axes)).plan(*arguments())
    assert ran >= ALWAYS | special


def traced():
    with mesh_in_use(stages(2)):
        return trace(train(in_two_stages), arguments(), ())[0]


def test_a_changed_argument_is_seen():
    """In a frozen step only mappings can be changed, and whatever a pass changes in them shows."""

    def reads(step):
        return len(step.regions)

    def forgets_a_slice(step):
        (loop,) = [region for region in step.regions if region.loop is not None]
        loop.slices.popitem()

    def adds_an_input(step):
        step.carried[0] = 0

    watch(reads, set())(traced())
    for careless in (forgets_a_slice, adds_an_input):
        with pytest.raises(AssertionError, match=f"{careless.__name__} changed its arguments"):
            watch(careless, set())(traced())
    step = traced()
    for value, field in ((step, "carried"), (step.regions[0], "ops"), (next(step.ops()), "backward")):
        with pytest.raises(FrozenInstanceError):
            setattr(value, field, ())


def test_variables_are_of_one_class_and_dropped_results_of_its_only_subclass():
    var = jax.make_jaxpr(jnp.sin)(1.0).jaxpr.outvars[0]
    (dropped,) = type(var).__subclasses__()
    assert (is_var(var), is_var(dropped(var.aval)), dropped.__name__) == (True, False, "DropVar")
    assert not dropped.__subclasses__()
