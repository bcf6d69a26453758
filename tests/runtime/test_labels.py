"""What messages call a function that a library wraps."""

import functools

import equinox
import jax
import pytest
from flax import nnx

from mmruntime._frontend.labels import label_of


def loss(model, batch):
    return batch


@pytest.mark.parametrize(
    "wrap",
    [
        jax.value_and_grad,
        equinox.filter_value_and_grad,
        nnx.grad,
        functools.partial(nnx.value_and_grad, has_aux=True),
        lambda fun: nnx.jit(nnx.grad(fun)),
    ],
)
def test_a_message_names_the_function_that_the_user_wrote(wrap):
    """A name such as `grad_wrapper` of Flax is not in the user's program."""
    assert label_of(wrap(loss)) == "loss"
