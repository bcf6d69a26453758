"""`parallelize_step`: a linen model that returns its loss, and an optimizer, as one compiled training step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

import jax
import numpy as np
import optax  # type: ignore[import-untyped]
from flax import linen as nn
from flax.training.train_state import TrainState
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from mmruntime import _check, _compat
from mmruntime._core.multimesh import MultiMesh
from mmruntime._execution.host_values import unshared
from mmruntime._frontend.constraint import with_sharding_constraint
from mmruntime._step.initializer import initializer
from mmruntime._step.mesh_function import MeshFunction
from mmruntime._step.mjit import mjit
from mmruntime._step.parallelize import abstract_batch

Step = MeshFunction[[TrainState, Any], tuple[jax.Array, TrainState]]
# MultiMesh's seed of the initial parameters.
_SEED = 42


@overload
def parallelize_step(
    model: nn.Module,
    optimizer: optax.GradientTransformation,
    mesh: MultiMesh | Mesh | None = None,
    global_batch: None = None,
    *,
    local_batch: Any,
    replicate_inputs: bool = True,
) -> tuple[Step, TrainState, MultiMesh, Callable[[Any], Any]]: ...


@overload
def parallelize_step(
    model: nn.Module,
    optimizer: optax.GradientTransformation,
    mesh: MultiMesh | Mesh | None = None,
    *,
    global_batch: Any,
    local_batch: None = None,
    replicate_inputs: bool = True,
) -> tuple[Step, TrainState, MultiMesh]: ...


@_compat.api_boundary
def parallelize_step(
    model: nn.Module,
    optimizer: optax.GradientTransformation,
    mesh: MultiMesh | Mesh | None = None,
    global_batch: Any = None,
    local_batch: Any = None,
    replicate_inputs: bool = True,
) -> tuple[Any, ...]:
    """Combine a model that returns its loss, and an optimizer, into a compiled training step.

        step, state, mesh, prepare_batch = mm.flax.parallelize_step(model, optax.sgd(0.1), mesh, local_batch=batch)
        for batch in batches:
            loss, state = step(state, prepare_batch(batch))

    Args:
        model: A linen module; `model.apply(params, batch)` is the loss, shape `()`. Its only collection is "params".
        optimizer: The optax optimizer.
        mesh: The mesh that the model's tasks refer to; one axis "x" over `jax.devices()` if left out.
        global_batch: An example batch of all processes; only shapes and types matter. Give this or `local_batch`.
        local_batch: An example batch of one process. The global batch is larger along dimension 0 by the number of
            processes.
        replicate_inputs: Whether the batch is replicated over the submesh that reads it. False leaves its layout to the
            model's own constraints.

    Returns:
        `(step, state, mesh)`; with `local_batch` also `prepare_batch`, from the batch that a process has loaded to the
        global batch in the layout of the step. `step(state, batch)` is `(loss, new_state)`, with a loss of shape `()`.
        `state` is a Flax `TrainState` of parameters from `jax.random.key(42)`, each made on its own submesh.

    Raises:
        TypeError: If `model` is no linen module, its loss is no scalar, or an option is of another type.
        ValueError: If both or neither of the batches are given, or the model has collections besides "params".
    """
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"parallelize_step: expected a flax.linen module, got {type(model).__name__}. For nnx modules and plain "
            "functions write the step yourself and compile it with mm.mjit(step, mesh=mesh)."
        )
    if not (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
        raise _check.wrong("parallelize_step", "optimizer", "an optax optimizer, such as optax.sgd(0.1)", optimizer)
    if mesh is not None and not isinstance(mesh, Mesh):
        raise _check.wrong("parallelize_step", "mesh", "a mm.MultiMesh or a jax.sharding.Mesh", mesh)
    _check.flag("parallelize_step", "replicate_inputs", replicate_inputs)
    if (global_batch is None) == (local_batch is None):
        raise ValueError(
            "parallelize_step: give an example batch as either global_batch= (of all processes) or local_batch= (of "
            f"this process), got {'neither' if global_batch is None else 'both'}."
        )
    if mesh is None:
        mesh = MultiMesh(axis_sizes=(len(jax.devices()),), axis_names=("x",))
    if local_batch is None:
        batch = abstract_batch("parallelize_step", "global_batch", global_batch)
    else:
        batch = _of_all_processes(abstract_batch("parallelize_step", "local_batch", local_batch))

    def init(key: Any, batch: Any) -> TrainState:
        params = model.init(key, batch)
        extra = sorted(set(params) - {"params"})
        if extra:
            raise ValueError(
                f"parallelize_step: the model has collections {', '.join(extra)} besides params, whose updates this "
                "step would lose. Write the step yourself, with mutable=, and compile it with mm.mjit(step, mesh=mesh)."
            )
        create: Any = TrainState.create
        return create(apply_fn=model.apply, params=params, tx=optimizer)  # type: ignore[no-any-return]

    def loss_of(params: Any, batch: Any) -> Any:
        loss: Any = model.apply(params, batch)
        if not isinstance(loss, jax.Array) or loss.shape != ():
            shape = f"an array of shape {loss.shape}" if isinstance(loss, jax.Array) else type(loss).__name__
            raise TypeError(
                f"parallelize_step: {type(model).__name__} must return its loss, a scalar, but returned {shape}. "
                "Reduce it in __call__, for example by .mean()."
            )
        return loss

    def train_step(state: TrainState, batch: Any) -> tuple[jax.Array, TrainState]:
        if replicate_inputs:
            batch = with_sharding_constraint(batch, PartitionSpec())
        loss, grads = jax.value_and_grad(loss_of)(state.params, batch)
        update: Any = state.apply_gradients
        return loss, update(grads=grads)

    key = jax.random.key(_SEED)
    step: Step = mjit(train_step, mesh=mesh)
    step.plan(jax.eval_shape(init, key, batch), batch)

    def initial(key: Any) -> TrainState:
        # The parameters do not depend on the values of the batch.
        return init(key, jax.tree.map(lambda leaf: jax.numpy.zeros(leaf.shape, leaf.dtype), batch))

    state = initializer(initial, step, argument=0)(key)
    if local_batch is None:
        return step, state, step.multimesh
    return step, state, step.multimesh, _prepare(step, jax.tree.structure(local_batch))


def _of_all_processes(batch: Any) -> Any:
    """The shapes of the global batch, given the shapes of one process."""

    def shape(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        sizes = leaf.shape
        return jax.ShapeDtypeStruct((sizes[0] * jax.process_count(), *sizes[1:]) if sizes else (), leaf.dtype)

    return jax.tree.map(shape, batch)


def _prepare(step: Step, tree: Any) -> Callable[[Any], Any]:
    def prepare_batch(host_batch: Any) -> Any:
        """The batch of this process as global arrays, in the layout of the step."""
        structure: Any = jax.tree.structure(host_batch)
        if structure != tree:
            raise ValueError(
                f"prepare_batch: expected a batch of the tree {tree}, as local_batch has, got {structure}."
            )
        if jax.process_count() == 1:
            layouts = jax.tree.map(lambda leaf: leaf.sharding, step.abstract_args()[1])
            jax.tree_util.tree_map_with_path(_check_divides, host_batch, layouts)
            own = jax.tree.map(lambda leaf, layout: unshared([leaf], [layout])[0], host_batch, layouts)
            return jax.device_put(own, layouts)
        layout = _by_process(step.multimesh.mesh)
        alone = NamedSharding(layout.mesh, PartitionSpec())

        def assemble(leaf: Any) -> Any:
            # A number is the same in all processes, which the step compares.
            (own,) = unshared([np.asarray(leaf)], [alone])
            return jax.make_array_from_process_local_data(layout, own) if np.ndim(leaf) else own

        return jax.tree.map(assemble, host_batch)

    return prepare_batch


def _by_process(mesh: Mesh) -> NamedSharding:
    """A layout in which each process has its own rows, in the order of the processes."""
    devices: Any = mesh.devices
    rows = devices.reshape(devices.shape[0], -1)
    count = jax.process_count()
    if len(rows) == count and all(device.process_index == k for k, row in enumerate(rows) for device in row):
        return NamedSharding(mesh, PartitionSpec(mesh.axis_names[0]))
    # Where the first axis of the mesh is not that of the processes, several would have the same rows.
    first: dict[int, Any] = {}
    for device in jax.devices():
        first.setdefault(device.process_index, device)
    each = np.array([first[process] for process in sorted(first)])
    return NamedSharding(Mesh(each, ("process",)), PartitionSpec("process"))


def _check_divides(path: Any, leaf: Any, sharding: Any) -> None:
    try:
        sharding.shard_shape(np.shape(leaf))
    except ValueError as error:
        raise ValueError(
            f"prepare_batch: batch{jax.tree_util.keystr(path)} has the shape {np.shape(leaf)}, which the step's layout "
            f"{sharding.spec} on axes {dict(sharding.mesh.shape)} cannot cut evenly. Give batches of the size of "
            "local_batch, or drop the last incomplete one."
        ) from error
