"""What a loss changes of its batch is seen as after one call on the whole batch, or raises where it is read."""

import jax
import jax.numpy as jnp
import pytest

import mmruntime as mm

BATCH = {"x": (8, 4), "y": (8,), "parts": [(8, 4), (8, 2)], "inner": {"z": (8, 3)}}


def popped(params, batch):
    return (params * batch.pop("y")).mean()


def taken_of_a_list(params, batch):
    return (params * batch["parts"].pop(0)).mean()


def exchanged(params, batch):
    batch["x"], batch["y"] = batch["y"], batch["x"]
    return (params * batch["y"]).mean()


def reversed_list(params, batch):
    batch["parts"].reverse()
    return (params * batch["parts"][0]).mean()


def replaced(params, batch):
    batch["x"] = 2 * batch["x"]
    return (params * batch["x"]).mean()


def added(params, batch):
    batch["new"] = 2 * batch["x"]
    return (params * batch["new"]).mean()


def replaced_inside(params, batch):
    batch["inner"]["z"] = 2 * batch["inner"]["z"]
    return (params * batch["inner"]["z"]).mean()


def appended(params, batch):
    batch["parts"].append(2 * batch["x"])
    return (params * batch["x"]).mean()


def shapes_after(loss, read, *, cut):
    """The shapes of what is read of the batch after the gradient."""

    def step(params, batch):
        gradient = jax.grad(loss)
        if cut:
            gradient = mm.microbatch(gradient, size=2, argnum=1, reduce="exact")
        return gradient(params, batch), read(batch)

    shapes = jax.tree.map(
        lambda shape: jax.ShapeDtypeStruct(shape, jnp.float32), BATCH, is_leaf=lambda x: type(x) is tuple
    )
    params = jax.ShapeDtypeStruct((), jnp.float32)
    return jax.tree.map(lambda leaf: leaf.shape, jax.eval_shape(step, params, shapes)[1])


@pytest.mark.parametrize("loss", [popped, taken_of_a_list, exchanged, reversed_list])
def test_what_is_taken_out_or_moved_is_so_for_the_caller(loss):
    assert shapes_after(loss, lambda batch: batch, cut=True) == shapes_after(loss, lambda batch: batch, cut=False)


READS = {
    replaced: lambda batch: jnp.sum(batch["x"]),
    added: lambda batch: batch["new"] * 2,
    replaced_inside: lambda batch: batch["inner"]["z"].sum(),
    appended: lambda batch: batch,
}


@pytest.mark.parametrize("loss", READS)
def test_what_is_put_in_raises_where_it_is_read(loss):
    shapes_after(loss, READS[loss], cut=False)
    with pytest.raises(ValueError, match=f"{loss.__name__} puts another value into its batch, at "):
        shapes_after(loss, READS[loss], cut=True)
    assert shapes_after(loss, lambda batch: batch["y"], cut=True) == (8,)
