"""Functions of shards, communication, and values that are laid out over devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import mmruntime as mm
from tests.runtime.exactness.checking import assert_exact, case_of

pytestmark = pytest.mark.family

MESH = Mesh(np.asarray(jax.devices()).reshape(4, 2), ("model", "data"))
RNG = np.random.default_rng(0)
W, X = RNG.normal(size=(8, 8)), RNG.normal(size=(12, 8))


def columns(function: Callable[..., Any], out_specs: Any = None) -> Callable[..., Any]:
    """A function of each device's columns of the weights."""
    return shards(function, (P(None, "model"), P()), out_specs or P())


def shards(function: Callable[..., Any], in_specs: Any, out_specs: Any) -> Callable[..., Any]:
    return jax.shard_map(function, mesh=MESH, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def gathered(x: Any) -> Any:
    return lax.all_gather(x, "model", axis=1, tiled=True)


CASES: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "contraction over devices": (
        "concat",
        shards(lambda w, x: lax.psum(x @ w, "model"), (P("model", None), P(None, "model")), P()),
    ),
    "gradient through it": (
        "mean",
        jax.grad(
            lambda w, x: (
                shards(lambda w, x: lax.psum(x @ w, "model"), (P("model", None), P(None, "model")), P())(w, x) ** 2
            ).mean()
        ),
    ),
    "sum over devices of sums": ("sum", columns(lambda w, x: lax.psum((x @ w).sum(), "model"))),
    "largest over devices": ("max", columns(lambda w, x: lax.pmax((x @ w).max(), "model"))),
    "smallest over devices": ("min", columns(lambda w, x: lax.pmin((x @ w).min(), "model"))),
    "sum of largest": ("mixed", columns(lambda w, x: lax.psum((x @ w).max(), "model"))),
    "gathered columns": ("concat", columns(lambda w, x: gathered(x @ w))),
    "gathered apart": ("concat", columns(lambda w, x: lax.all_gather(x @ w, "model"))),
    "gathered examples": (
        "concat",
        columns(lambda w, x: lax.all_gather(x @ w, "model", axis=0, tiled=True)),
    ),
    "scattered columns": (
        "concat",
        shards(
            lambda w, x: lax.psum_scatter(x @ w, "model", scatter_dimension=1, tiled=True),
            (P("model", None), P(None, "model")),
            P(None, "model"),
        ),
    ),
    "sent on": (
        "concat",
        shards(lambda w, x: lax.ppermute(x @ w, "model", [(0, 1), (1, 2)]), (P(None, "model"), P()), P(None, "model")),
    ),
    "exchanged columns": (
        "concat",
        shards(
            lambda w, x: lax.all_to_all((x @ w)[:, :, None].repeat(4, 2), "model", 2, 1),
            (P(None, "model"), P()),
            P(None, "model"),
        ),
    ),
    "position of the device": (
        "concat",
        shards(lambda w, x: (x @ w) * lax.axis_index("model"), (P(None, "model"), P()), P(None, "model")),
    ),
    "shards of examples": ("concat", shards(lambda w, x: jnp.tanh(x @ w), (P(), P("data")), P("data"))),
    "examples by device": ("concat", columns(lambda w, x: x @ w, P("model"))),
    "constraint": (
        "mean",
        lambda w, x: lax.with_sharding_constraint(x @ w, NamedSharding(MESH, P("data", "model"))).mean(),
    ),
    "logical constraint": ("mean", lambda w, x: mm.with_sharding_constraint(x @ w, P("batch", None)).mean()),
    "constraint of a sum": (
        "sum",
        lambda w, x: lax.with_sharding_constraint((x @ w).sum(axis=0), NamedSharding(MESH, P("model"))),
    ),
    "moved": ("concat", lambda w, x: jax.device_put(x @ w, NamedSharding(MESH, P("data")))),
    "named": ("concat", lambda w, x: checkpoint_name(x @ w, "hidden")),
    "mapped with a collective": (
        "mixed",
        lambda w, x: jax.vmap(lambda row: row - lax.pmean(row, "examples"), axis_name="examples")(x @ w),
    ),
    "mean over a mapped axis": (
        "mean",
        lambda w, x: jax.vmap(lambda row: lax.pmean(row, "examples"), axis_name="examples", out_axes=None)(x @ w),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_devices(name: str) -> None:
    expected, fun = CASES[name]
    case = case_of(fun, (W, X))
    assert case.words == [expected], case.proof.verdicts[0].reason
    assert_exact(case)
