"""Every parameter of every public name, given values of other types: the message names both, when they are given."""

import inspect

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

import mmruntime as mm
from tests.runtime.helpers import stages


class Model(nn.Module):
    @nn.compact
    def __call__(self, batch):
        return nn.Dense(1)(batch).mean()


def loss(params, batch):
    return ((batch @ params) ** 2).sum()


def params():
    return jnp.ones((4, 4))


def batch():
    return jnp.ones((8, 4))


MESH = stages(2, data=2)
PAIR = {"devices": (0, 1), "axis_sizes": (2,), "axis_names": ("x",)}

# One value of each type that a user may mistake for another.
VALUES = {
    "none": None,
    "true": True,
    "integer": 3,
    "negative": -1,
    "float": 1.5,
    "text": "x",
    "empty": "",
    "bytes": b"x",
    "function": lambda: None,
    "class": int,
    "object": object(),
    "nothing": (),
    "integers": [0, 1],
    "floats": [0.5, 1.5],
    "names": ("a", "b"),
    "pairs": [("a", "b")],
    "mapping": {"a": 0},
    "name_mapping": {"a": "b"},
    "nameless": {1: 2},
    "set": {"a"},
    "array": np.arange(2),
    "jax_array": jnp.ones(2),
    "spec": PartitionSpec("a"),
    "task": mm.Task(mesh_slice={"stage": 0}),
    "mesh": Mesh(np.array(jax.devices()[:2]), ("x",)),
    "abstract_mesh": AbstractMesh((2,), ("x",)),
    "multimesh": MESH,
    "task_mesh": mm.TaskMesh(**PAIR),
    "devices": jax.devices()[:2],
    "device": jax.devices()[0],
    "schedule": mm.schedules.make("1f1b", 2, 2),
    "auto": mm.schedules.Auto(),
}

FUNCTIONS = "function class multimesh mesh"
PAIRS = "none nothing pairs mapping name_mapping"
ARRAYS = "true integer negative float array jax_array"
TREES = f"{ARRAYS} none nothing integers floats mapping nameless"
A_TASK = {"name": "none text", "task": "none task", "fields": ""}

# For each public name: how to call it, arguments that suit it, and which of the values suit each parameter.
CASES = {
    "TaskMesh": (
        mm.TaskMesh,
        PAIR,
        {
            "devices": "integers array",
            "axis_sizes": "none nothing integers array",
            "axis_names": "none text nothing names spec",
            "abstract": "none abstract_mesh mesh multimesh",
        },
    ),
    "TaskMesh.place": (mm.TaskMesh(**PAIR).place, {}, {"devices": "integers array"}),
    "MultiMesh": (
        mm.MultiMesh,
        {"axis_sizes": (2,), "axis_names": ("x",)},
        {
            "axis_sizes": "none nothing integers array",
            "axis_names": "none text nothing names spec",
            "devices": "none nothing devices",
            "global_mesh": "none mesh multimesh",
            "logical_axes": PAIRS,
        },
    ),
    "MultiMesh.slice": (lambda stage: MESH.slice(stage=stage), {}, {"stage": "integer negative"}),
    "Task": (
        mm.Task,
        {},
        {
            "name": "none text",
            "mesh": "none mesh multimesh task_mesh",
            "logical_axes": PAIRS,
            "mesh_slice": "none mapping",
            "extra_axes": PAIRS,
            "split_backprop": "none names",
            "loop_dependent_mesh_slice": f"none {FUNCTIONS}",
        },
    ),
    "task": (mm.task, {"fun": loss}, {"fun": "function multimesh mesh", **A_TASK}),
    "task with earlier arguments": (
        lambda devices, device_axes: mm.task(loss, devices=devices, device_axes=device_axes),
        {"devices": [0, 1], "device_axes": ("x",)},
        {"devices": "none integers array devices", "device_axes": "none text nothing names spec"},
    ),
    "stage": (
        mm.stage,
        {"index": 0, "count": 2},
        {
            "index": "integer negative",
            "count": "integer negative",
            "axis": "text",
            "weights": "none text nothing integers floats array jax_array empty",
            "chunks": "none integer",
            "placement": "none",
        },
    ),
    "stage_scan": (
        mm.stage_scan,
        {"fun": jax.lax.scan},
        {"fun": FUNCTIONS, "axis": "text", "weights": "none nothing integers floats array jax_array"},
    ),
    "stage_sequential": (
        mm.stage_sequential,
        {"module": nn.Sequential([nn.Dense(1)])},
        {
            "module": "",
            "axis": "text",
            "weights": "none nothing integers floats array jax_array",
            "chunks": "none integer",
            "placement": "none",
        },
    ),
    "register_task": (
        mm.Context().register_task,
        {"matcher": "layer", "task": mm.Task(mesh_slice={"stage": 0})},
        {"matcher": "text", "callback": f"none {FUNCTIONS}", "task": "none task"},
    ),
    "tasks": (lambda configurable: mm.tasks(configurable).__enter__(), {}, {"configurable": "none multimesh mesh"}),
    "slice_global_mesh": (MESH(lambda stage: mm.slice_global_mesh(stage=stage)), {}, {"stage": "integer negative"}),
    "microbatch": (
        mm.microbatch,
        {"fun": loss, "count": 2},
        {
            "fun": FUNCTIONS,
            "dim": "integer negative",
            "size": "none",  # `count` is given.
            "argnum": "integer negative nothing integers array",
            "interleave": "none integer",
            "num_stages": "none integer",
            "schedule": "none schedule auto",
            "unrolling": "none integer negative",
            "arg_shardings": "none nothing names pairs spec",
            "custom_schedule": "none nothing pairs",
            "count": "integer",
            "reduce": "none nothing",
            "check": "true",
            "rng": "none integer negative nothing integers array",
            "batch_stats": "none",
            "sync": "none",
            "all_gather": "none text nothing names",
            "accumulate": "",
            "slices": "none integer",
        },
    ),
    "microbatch_scan": (
        mm.microbatch_scan,
        {"fun": jax.lax.scan},
        {
            "fun": FUNCTIONS,
            "count": "none integer",
            "schedule": "none schedule auto",
            "sync": "none",
            "all_gather": "none text nothing names",
            "accumulate": "",
        },
    ),
    "microbatch_loop": (
        mm.microbatch_loop,
        {"body": loss},
        {
            "body": FUNCTIONS,
            "count": "none integer",
            "schedule": "none schedule auto",
            "sync": "none",
            "all_gather": "none text nothing names",
            "accumulate": "",
        },
    ),
    "parallelize": (
        mm.parallelize,
        {"fun": loss, "init_params": params, "get_input_batch": batch},
        {
            "fun": FUNCTIONS,
            "init_params": FUNCTIONS,
            "get_input_batch": FUNCTIONS,
            "initial_batch": TREES,
            "devices": "none nothing devices",
            "mesh": "none multimesh",
        },
    ),
    "gather": (
        mm.gather,
        {"tree": jnp.ones(2)},
        {"tree": " ".join(VALUES), "device": "none device"},
    ),
    "mjit": (
        mm.mjit,
        {"fun": loss, "mesh": MESH},
        {
            "fun": FUNCTIONS,
            "mesh": "none mesh multimesh",
            "devices": "none nothing devices",
            "donate_argnums": "none nothing integer negative integers array",
            "donate_argnames": "none nothing text empty names spec",
            "static_argnums": "none nothing integer negative integers array",
            "static_argnames": "none nothing text empty names spec",
            "out_like": "none",
            "like": "none",
            "in_shardings": "none nothing",
            "out_shardings": "none nothing",
            "of_like": "",
        },
    ),
    "with_sharding_constraint": (
        mm.with_sharding_constraint,
        {"x": jnp.ones((2, 2)), "axis_resources": PartitionSpec()},
        {"x": TREES, "axis_resources": "none nothing names pairs spec"},
    ),
    "shard_map": (
        mm.shard_map,
        {"fun": loss, "in_specs": PartitionSpec(), "out_specs": PartitionSpec()},
        {"fun": FUNCTIONS, "mesh": "none mesh multimesh task_mesh", "options": ""},
    ),
    "autoshard": (lambda autoshard: mm.autoshard(autoshard).__enter__(), {}, {"autoshard": "none true"}),
    "ignore_transforms": (lambda ignore: mm.ignore_transforms(ignore).__enter__(), {}, {"ignore": "none true"}),
    "enable_fast_path": (lambda enable: mm.enable_fast_path(enable).__enter__(), {}, {"enable": "none true"}),
    "enable_recomputation": (lambda enable: mm.enable_recomputation(enable).__enter__(), {}, {"enable": "none true"}),
    "context": (
        lambda **switches: mm.context(**switches).__enter__(),
        {},
        dict.fromkeys(("autoshard", "enable_recomputation", "enable_fast_path", "ignore_transforms"), "none true"),
    ),
    "replicate_parameters_smaller_than_num_elements": (
        mm.replicate_parameters_smaller_than_num_elements,
        {},
        {"num_elements": "integer"},
    ),
    "flax.task": (mm.flax.task, {"model": Model}, {"model": "", "keep_paths": "true", **A_TASK}),
    "flax.shard_axes": (
        lambda axis_names, init: mm.flax.shard_axes(axis_names, init=init),
        {"axis_names": "a", "init": None},
        {"axis_names": "none text empty nothing names", "init": f"none {FUNCTIONS}"},
    ),
    "flax.parallelize_step": (
        mm.flax.parallelize_step,
        {"model": Model(), "optimizer": optax.sgd(0.1), "mesh": MESH, "local_batch": batch()},
        {
            "model": "",
            "optimizer": "",
            "mesh": "none mesh multimesh",
            "global_batch": "none",  # `local_batch` is given.
            "local_batch": TREES,
            "replicate_inputs": "true",
        },
    ),
}

# What messages call some of them.
TITLES = {
    "TaskMesh.place": "TaskMesh",
    "task with earlier arguments": "task",
    "flax.shard_axes": "shard_axes",
    "flax.parallelize_step": "parallelize_step",
}
TERMS = {
    ("task", "fun"): ("expected a function", "is a class"),
    ("parallelize", "fun"): ("expected a function",),
    ("flax.task", "model"): ("expected a Flax module class",),
    ("flax.parallelize_step", "model"): ("expected a flax.linen module",),
    ("with_sharding_constraint", "x"): ("what is constrained",),
    ("with_sharding_constraint", "axis_resources"): ("expected a PartitionSpec",),
    ("flax.shard_axes", "axis_names"): ("an axis name",),
    ("task", "fields"): ("unknown field 'fields'",),
}


@pytest.mark.parametrize(("name", "parameter"), [(name, each) for name, case in CASES.items() for each in case[2]])
def test_the_message_names_the_function_the_parameter_and_the_value(name, parameter) -> None:
    call, arguments, suitable = CASES[name]
    title = TITLES.get(name, name)
    terms = TERMS.get((name, parameter), (parameter,))
    for kind, value in VALUES.items():
        if kind in suitable[parameter].split():
            continue
        with pytest.raises((TypeError, ValueError)) as caught:
            call(**{**arguments, parameter: value})
        message = str(caught.value)
        # Fields of a task, wherever they are given, are checked by the task.
        assert message.startswith((f"{title}: ", f"{title}(", "Task: ")), (kind, message)
        assert any(term in message for term in terms), (kind, message)
        assert len(message) < 500, (kind, message)


def written_parameters(function) -> set[str]:
    """The parameters of a function, with its `**` where the signature shows what that takes."""
    if not hasattr(function, "__signature__"):
        return set(inspect.signature(function).parameters)
    code = inspect.unwrap(function).__code__
    of_many = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return set(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + of_many])


def test_every_parameter_of_every_public_name_is_here() -> None:
    public = {name: getattr(mm, name) for name in mm.__all__}
    public |= {f"flax.{name}": getattr(mm.flax, name) for name in mm.flax.__all__}
    del public["Context"], public["clear_tasks"]  # Without parameters.
    del public["custom_partitioning"]  # JAX's own.
    del public["reshard"], public["out_sharding"]  # Outside of steps JAX's own, too.
    # Only before JAX starts: see the tests of `init`.
    del public["init"], public["init_test"]
    del public["flax.with_sharding_constraint"]  # The same as without `flax`.
    for name, function in public.items():
        expected = written_parameters(function) - {"context_value"}  # Anything suits the latter.
        if name in ("slice_global_mesh", "flax.shard_axes"):
            expected = set(CASES[name][2])
        assert name in CASES, f"{name} is public: add what suits each of its parameters"
        assert set(CASES[name][2]) == expected, name
