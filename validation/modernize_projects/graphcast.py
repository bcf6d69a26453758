"""graphcast: https://github.com/google-deepmind/graphcast, of September 2023.

Its tests of arrays in xarray under `jit`, `grad`, `vmap` and `pmap` and of trees of data sets; and loss, gradients and
a rollout of three steps of a predictor of ours in the project's autoregressive one, the former in float32 with noise,
the latter in its `Bfloat16Cast`. Needs dm-haiku, chex, jraph, xarray and pandas.
"""

import functools
import warnings

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import xarray
from modernize_projects.support import arrays_of_tests, drawn_like

COMMIT = "858301cde5"
SELECT = ("replace_pmap",)


# What a newer xarray says of the project's own calls.
warnings.filterwarnings("ignore", message=".*Dataset.dims")

from graphcast import autoregressive, casting, predictor_base, xarray_jax, xarray_jax_test, xarray_tree_test  # noqa: E402

# What a newer xarray asks of arrays that are not NumPy's.
xarray_jax.JaxArrayWrapper.real = property(lambda self: self)
xarray_jax.JaxArrayWrapper.imag = property(lambda self: 0 * self)


class Linear(predictor_base.Predictor):
    """The next temperature from two earlier ones and a forcing, a matrix for each."""

    def __init__(self):
        self.first, self.second, self.forced = (hk.Linear(5) for _ in range(3))

    def __call__(self, inputs, targets_template, forcings, **_):
        earlier = xarray_jax.unwrap_data(inputs["temperature"])
        forced = xarray_jax.unwrap_data(forcings["sun"])
        found = self.first(earlier[:, 0]) + self.second(earlier[:, 1]) + self.forced(forced[:, 0])
        value = xarray_jax.DataArray(jnp.tanh(found)[:, None], dims=("batch", "time", "place"))
        return xarray_jax.Dataset({"temperature": value}, coords={"time": targets_template.coords["time"]})

    def loss(self, inputs, targets, forcings, **_):
        found = self(inputs, targets, forcings)
        squares = (found - targets).temperature ** 2
        loss = squares.mean(["time", "place"], skipna=False)
        return loss, {"squares": loss}

    def loss_and_predictions(self, inputs, targets, forcings, **_):
        return self.loss(inputs, targets, forcings), self(inputs, targets, forcings)


def data(times, names):
    """Random values of some variables at times counted from now."""
    time = pd.to_timedelta(np.asarray(times) * 6, unit="h")
    values = {name: (("batch", "time", "place"), numbers.normal(size=(2, len(times), 5)).astype("f")) for name in names}
    return xarray.Dataset(values, coords={"time": time})


numbers = np.random.RandomState(0)
inputs = data((-1, 0), ("temperature", "sun"))
targets, forcings = data((1, 2, 3), ("temperature",)), data((1, 2, 3), ("sun",))


def predictor(inner, noise=None):
    """The project's wrapper for several steps around one for a single step."""
    return autoregressive.Predictor(inner, noise_level=noise, gradient_checkpointing=True)


@functools.partial(hk.transform)
def rollout():
    """Three steps."""
    return predictor(casting.Bfloat16Cast(Linear()))(inputs, targets * np.nan, forcings)


@functools.partial(hk.transform)
def loss():
    """The loss of each example."""
    value, parts = predictor(Linear(), 0.1).loss(inputs, targets, forcings)
    return xarray_jax.unwrap_data(value), xarray_jax.unwrap_data(parts["squares"])


params = drawn_like(loss.init(jax.random.PRNGKey(0)))
mean = lambda params: loss.apply(params, jax.random.PRNGKey(1))[0].mean()  # noqa: E731
out = {
    "tests": arrays_of_tests(xarray_jax_test, "XarrayJaxTest"),
    "trees": arrays_of_tests(xarray_tree_test, "XarrayTreeTest"),
    "rollout": xarray_jax.unwrap_data(rollout.apply(params, None)["temperature"]),
    "losses": loss.apply(params, jax.random.PRNGKey(1)),
    "gradients": jax.jit(jax.grad(mean))(params),
    "cast": jax.tree_util.tree_leaves(
        casting.tree_map_cast({"a": jnp.ones(3), "b": jnp.arange(2)}, jnp.float32, jnp.bfloat16)
    ),
}
