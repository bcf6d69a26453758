"""Tiny models, optimizers, and the comparison with plain `jax.jit` that the tests here share."""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import HealthCheck, seed, settings

import mmruntime as mm
from mmruntime._commands import compare
from mmruntime._commands.verify import with_bits


@contextlib.contextmanager
def new_objects_alone() -> Iterator[None]:
    """A search for garbage looks at what is made in this block: after many tests a look at all takes seconds."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


WIDTH = 4
SCHEDULES = ("gpipe", "1f1b", "wavefront")


def stages(count: int, **axes: int) -> mm.MultiMesh:
    """A mesh of `count` stages, with further axes inside of each."""
    return mm.MultiMesh(axis_sizes=(count, *axes.values()), axis_names=("stage", *axes))


def all_devices(**axes: int) -> mm.MultiMesh:
    """A mesh of all eight devices."""
    return mm.MultiMesh(axis_sizes=tuple(axes.values()) or (8,), axis_names=tuple(axes) or ("x",))


def submesh(devices: Sequence[int], **axes: int) -> mm.TaskMesh:
    """The submesh of the devices at these positions of the mesh."""
    return mm.TaskMesh(devices=devices, axis_sizes=tuple(axes.values()), axis_names=tuple(axes))


def on(stage: int, name: str | None = None) -> mm.Task:
    """The task of one stage."""
    return mm.Task(name=name or f"stage_{stage}", mesh_slice={"stage": stage})


def normal(*shape: int, seed: int = 0, dtype: Any = None) -> np.ndarray:
    """Reproducible numbers, in the type that JAX calls float now."""
    return np.asarray(np.random.default_rng(seed).normal(size=shape), dtype or jnp.zeros(()).dtype)


def weights(count: int, width: int = WIDTH) -> list[np.ndarray]:
    """`count` square weights."""
    return [
        normal(width, width, seed=1 + index) / np.asarray(np.sqrt(width), jnp.zeros(()).dtype) for index in range(count)
    ]


def batches(count: int, examples: int = 8, width: int = WIDTH) -> list[dict[str, np.ndarray]]:
    """`count` regression batches."""
    return [
        {"x": normal(examples, width, seed=100 + index), "y": normal(examples, width, seed=200 + index)}
        for index in range(count)
    ]


def layer(w: Any, x: Any) -> Any:
    """A dense layer."""
    return jnp.tanh(x @ w)


def in_stages(params: Any, x: Any, count: int) -> Any:
    """Layer i on stage i."""
    for index in range(count):
        x = mm.task(layer, task=on(index))(params[index], x)
    return x


def chain(params: Any, x: Any) -> Any:
    """All layers, each on a stage of its own."""
    return in_stages(params, x, len(params))


def plain_chain(params: Any, x: Any) -> Any:
    """`chain` without tasks."""
    for w in params:
        x = layer(w, x)
    return x


def squares(prediction: Any, target: Any) -> Any:
    """The sum of squared errors."""
    return ((prediction - target) ** 2).sum()


def four_layers(params: Any, batch: Any) -> Any:
    """The loss of four layers on four stages."""
    return squares(in_stages(params, batch["x"], 4), batch["y"])


def sgd(params: Any, grads: Any, rate: float = 0.05) -> Any:
    """One step of gradient descent."""
    return jax.tree.map(lambda p, g: p - rate * g.astype(p.dtype), params, grads)


def adam_state(params: Any) -> dict[str, Any]:
    """The state that `adam` starts from."""
    zeros = jax.tree.map(np.zeros_like, params)
    return {"params": params, "mu": zeros, "nu": zeros, "count": np.zeros((), np.int32)}


def adam(state: dict[str, Any], grads: Any, rate: float = 0.05) -> dict[str, Any]:
    """One step of Adam, with an epsilon that keeps it well conditioned."""
    count = state["count"] + 1
    mu = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["mu"], grads)
    nu = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, state["nu"], grads)

    def update(p: Any, m: Any, v: Any) -> Any:
        steps = count.astype(p.dtype)
        return p - rate * (m / (1 - 0.9**steps)) / (jnp.sqrt(v / (1 - 0.99**steps)) + 1e-3)

    return {"params": jax.tree.map(update, state["params"], mu, nu), "mu": mu, "nu": nu, "count": count}


def value_and_grad(loss: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """The loss and its gradient over microbatches."""
    options.setdefault("count", 4)
    return mm.microbatch(jax.value_and_grad(loss), argnum=1, **options)


def sgd_step(loss: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """A step of gradient descent over microbatches."""

    def step(params: Any, batch: Any) -> Any:
        value, grads = value_and_grad(loss, **options)(params, batch)
        return sgd(params, grads), value

    return step


def adam_step(loss: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """A step of Adam over microbatches."""

    def step(state: Any, batch: Any) -> Any:
        value, grads = value_and_grad(loss, **options)(state["params"], batch)
        return adam(state, grads), value

    return step


def sample(count: int) -> Callable[[Any], Any]:
    """Run a property test with `count` examples: the same on each run, and others on another version of Python."""

    def decorate(test: Any) -> Any:
        quiet = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}
        return seed(sys.version_info.minor)(settings(max_examples=count, **quiet)(test))

    return decorate


def assert_close(found: Any, expected: Any, rtol: float) -> None:
    """Every array equals its counterpart, up to `rtol` of the counterpart's largest entry."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    pairs = zip(jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(expected), strict=True)
    for (path, one), other in pairs:
        where = jax.tree_util.keystr(path)
        if jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
            one, other = jax.random.key_data(one), jax.random.key_data(other)
        assert one.dtype == other.dtype, where
        assert one.shape == other.shape, where
        one, other = np.asarray(one), np.asarray(other)
        if one.dtype.kind in "biu":
            np.testing.assert_array_equal(one, other, err_msg=where)
            continue
        one, other = one.astype(np.complex128), other.astype(np.complex128)
        scale = max(float(np.abs(other).max(initial=0)), 1e-30)
        np.testing.assert_allclose(one, other, rtol=0, atol=rtol * scale, err_msg=where)


def on_a_boundary(shape: Sequence[int], dtype: Any = np.float64) -> Any:
    """An array of the host that XLA takes without a copy."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.empty(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(dtype).reshape(shape)


def assert_equal(found: Any, expected: Any) -> None:
    """Every array equals its counterpart bit by bit."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def same(
    fun: Callable[..., Any], mesh: mm.MultiMesh, *args: Any, rtol: float = 1e-12, **kwargs: Any
) -> tuple[Any, Any]:
    """Call `fun` once on the mesh and once under plain `jax.jit`; the compiled step and its result."""
    expected = jax.jit(fun)(*args, **kwargs)
    step = mm.mjit(fun, mesh=mesh)
    found = step(*args, **kwargs)
    assert_close(found, expected, rtol)
    return step, found


def train(
    fun: Callable[..., Any],
    mesh: mm.MultiMesh,
    state: Any,
    data: Sequence[Any],
    *,
    rtol: float = 1e-12,
    **options: Any,
) -> tuple[Any, Any]:
    """Run `fun(state, batch) -> (state, *rest)` over the data, on the mesh and under plain `jax.jit`.

    Every result of every call is compared, and state must stay in place after the first call.
    """
    plain = jax.jit(fun)
    step = mm.mjit(fun, mesh=mesh, **options)
    one = many = state
    for call, batch in enumerate(data):
        expected, found = plain(one, batch), step(many, batch)
        assert_close(found, expected, rtol)
        one, many = expected[0], found[0]
        if call:
            moved = step.latest_plan.runner.misplaced
            assert moved <= len(jax.tree.leaves(batch)), f"call {call}: {moved} arrays were not where they should be"
    assert step.num_plans == 1
    return step, many


def shard_shape(array: Any) -> tuple[int, ...]:
    """The shape of the part of an array on one device."""
    return array.sharding.shard_shape(array.shape)


def executables(step: Any) -> list[tuple[Any, Any]]:
    """Every program of a step: what it is, and its executable."""
    return list(step.latest_plan.compiled.programs.items())


def devices_of(executable: Any) -> set[int]:
    """Ids of the devices that an executable is compiled for."""
    shardings = jax.tree.leaves((executable.input_shardings, executable.output_shardings))
    return set(itertools.chain.from_iterable((device.id for device in s.device_set) for s in shardings))


def ids(array: Any) -> set[int]:
    """Ids of the devices that hold an array."""
    return {device.id for device in array.devices()}


def assert_same_bits(found: Any, expected: Any) -> None:
    """Equal arrays, bit for bit; where tests compile without optimization, within rounding.

    Initialisers promise the bits of `jax.jit`, and one program on two submeshes gives the same ones only if XLA fuses
    the same operations in it. Tests that call this have the mark `optimized`.
    """
    quick = os.environ.get("MMREWRITE_TESTS_OPTIMIZED") != "1"
    compare = functools.partial(np.testing.assert_allclose, rtol=1e-6) if quick else np.testing.assert_array_equal
    jax.tree.map(compare, found, expected)


def in_float64(fun: Callable[..., Any], *args: Any) -> Any:
    """The results of `fun` on one device with every float of `args` widened; types that `fun` names stay."""
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        wide = jax.tree.map(lambda leaf: with_bits(leaf, 64), args)
        return jax.tree.map(np.asarray, jax.jit(fun)(*wide))


def errors(one_device: Any, rewritten: Any, reference64: Any) -> dict[str, compare.Errors]:
    """How far each float array of two trees, in their own types, is from what float64 makes of it.

    Args:
        one_device: The results of the program on one device, as `jax.jit(fun)(*args)`, in any float types.
        rewritten: Those of the same program with its microbatches, on its mesh.
        reference64: Those of the program on one device in float64, as `in_float64(fun, *args)`.

    Returns:
        By the path of each float array, its relative errors: `.original` and `.rewritten` are norms relative to the
        norm in float64, and `.are_near()` is the rule of `mmrewrite verify`.
    """
    trees = [jax.tree_util.tree_leaves_with_path(tree) for tree in (one_device, rewritten, reference64)]
    return {
        jax.tree_util.keystr(path): compare.errors(np.asarray(one), np.asarray(other), np.asarray(wide))
        for (path, one), (_, other), (_, wide) in zip(*trees, strict=True)
        if jnp.issubdtype(one.dtype, jnp.inexact)
    }


def assert_as_near(one_device: Any, rewritten: Any, reference64: Any, dtype: Any) -> None:
    """Each float array is about as near to float64 as on one device, where steps compute in `dtype`; counts are equal.

    "About" is what `mmrewrite verify` allows: 1.6 times the error of one device, and a part of the spacing of `dtype`.
    """
    found = errors(one_device, rewritten, reference64)
    far = {path: found[path] for path, is_near in compare.near(found, compare.spacing(dtype)).items() if not is_near}
    assert not far
    for one, other in zip(jax.tree.leaves(one_device), jax.tree.leaves(rewritten), strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        if not jnp.issubdtype(one.dtype, jnp.inexact):
            np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
