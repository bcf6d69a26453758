"""Functions of shards, with the examples split over mesh axes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from tests.runtime.exactness.checking import assert_exact, case_of

pytestmark = pytest.mark.family

# The examples' axes come first, last and between others.
MESHES = {
    "first": Mesh(np.asarray(jax.devices()).reshape(2, 4), ("data", "model")),
    "last": Mesh(np.asarray(jax.devices()).reshape(4, 2), ("model", "data")),
    "two": Mesh(np.asarray(jax.devices()).reshape(2, 2, 2), ("data", "model", "fsdp")),
}
RNG = np.random.default_rng(0)
W, X, Y, MASK = RNG.normal(size=(8, 8)), RNG.normal(size=(24, 8)), RNG.normal(size=(24, 8)), RNG.random(24) > 0.3

BOTH = ("data", "fsdp")
WHOLE, EXAMPLES = P(), P("data")


def on(
    mesh: str,
    function: Callable[..., Any],
    in_specs: Any = (WHOLE, EXAMPLES),
    out_specs: Any = WHOLE,
    check: bool = False,
) -> Callable[..., Any]:
    return jax.shard_map(function, mesh=MESHES[mesh], in_specs=in_specs, out_specs=out_specs, check_vma=check)


def hidden(w: Any, x: Any) -> Any:
    return jnp.tanh(jnp.sin(x) @ w)


def mean_loss(w: Any, x: Any, axes: Any = "data") -> Any:
    return lax.pmean((hidden(w, x) ** 2).mean(), axes)


def masked(w: Any, batch: Any) -> Any:
    e = ((hidden(w, batch["x"]) - batch["y"]) ** 2).sum(-1)
    return lax.psum((e * batch["mask"]).sum(), "data"), lax.psum(batch["mask"].sum(), "data")


def loss_of_pair(function: Callable[..., Any]) -> Callable[..., Any]:
    def loss(w: Any, batch: Any) -> Any:
        total, count = function(w, batch)
        return total / count

    return loss


def layers(mesh: str, check: bool, *, remat: bool = False) -> Callable[..., Any]:
    """Layers in a scan, each of them on shards of the examples and of the weights."""

    def layer(w: Any, x: Any) -> Any:
        return x + lax.psum(jnp.tanh(x @ w) @ w.T, "model")

    def loss(ws: Any, x: Any) -> Any:
        on_shards = on(mesh, layer, (P(None, "model"), P("data")), P("data"), check)
        body = jax.checkpoint(on_shards) if remat else on_shards
        h, _ = lax.scan(lambda h, w: (body(w, h), None), x, ws)
        return (h**2).mean()

    return loss


def dropped(w: Any, x: Any) -> Any:
    key = jax.random.fold_in(jax.random.key(0), lax.axis_index("data"))
    keep = jax.random.bernoulli(key, 1.0, (x.shape[0], 8))
    return lax.pmean(jnp.where(keep, hidden(w, x), 0).mean(), "data")


def chunks(w: Any, x: Any) -> Any:
    """A loop over a device's own examples."""

    def body(total: Any, row: Any) -> Any:
        return total + hidden(w, row).sum(), hidden(w, row)

    total, rows = lax.scan(body, jnp.zeros(()), x)
    return lax.psum(total, "data"), rows


def over_rows(w: Any, x: Any) -> Any:
    def body(total: Any, row: Any) -> Any:
        return total + lax.psum(hidden(w, row).sum() ** 2, "data"), None

    return lax.scan(body, jnp.zeros(()), x)[0]


def picked(w: Any, x: Any) -> Any:
    logp = jax.nn.log_softmax(hidden(w, x))
    return -lax.pmean(logp[jnp.arange(x.shape[0]), jnp.abs(x).argmax(-1)].mean(), "data")


def zero_step(w: Any, x: Any) -> Any:
    """Weights split over the examples' axis: gathered, and their gradients added up and shared out."""
    whole = lax.all_gather(w, "data", tiled=True)
    value, gradient = jax.value_and_grad(lambda w: (hidden(w, x) ** 2).mean())(whole)
    return lax.pmean(value, "data"), lax.psum_scatter(gradient, "data", tiled=True) / 2


FIRST = {"x": X, "y": Y, "mask": MASK.astype(float)}
PAIR_SPECS = ((P(), P("data")), (P(), P()))
CASES: dict[str, tuple[list[str], Callable[..., Any], Any]] = {
    "rows in their place": (["concat"], on("first", hidden, out_specs=P("data")), X),
    "rows along two axes": (["concat"], on("two", hidden, (P(), P(BOTH)), P(BOTH)), X),
    "rows along axes in another order": (["mixed"], on("two", hidden, (P(), P(BOTH)), P(("fsdp", "data"))), X),
    "rows behind copies": (["concat"], on("last", hidden, out_specs=P(("model", "data"))), X),
    "rows before copies": (["mixed"], on("first", hidden, out_specs=P(("data", "model"))), X),
    "rows of one device": (["mixed"], on("first", hidden, out_specs=P()), X),
    "mean": (["mean"], on("first", mean_loss), X),
    "mean along two axes": (["mean"], on("two", functools.partial(mean_loss, axes=BOTH), (P(), P(BOTH))), X),
    "mean along one axis, then the other": (
        ["mean"],
        on("two", lambda w, x: lax.pmean(lax.pmean(hidden(w, x).mean(), "data"), "fsdp"), (P(), P(BOTH))),
        X,
    ),
    "mean along one axis of two": (["mixed"], on("two", mean_loss, (P(), P(BOTH))), X),
    "sum and count": (["sum", "same"], on("first", masked, *PAIR_SPECS), FIRST),
    "masked mean": (["sum"], loss_of_pair(on("first", masked, *PAIR_SPECS)), FIRST),
    "squared mean": (["mixed"], on("first", lambda w, x: lax.pmean(hidden(w, x).mean(), "data") ** 2), X),
    "no reduction": (["mixed"], on("first", lambda w, x: hidden(w, x).mean()), X),
    "largest": (["max"], on("first", lambda w, x: lax.pmax(hidden(w, x).max(), "data")), X),
    "smallest": (["min"], on("first", lambda w, x: lax.pmin(hidden(w, x).min(), "data")), X),
    "largest of one device": (["mixed"], on("first", lambda w, x: hidden(w, x).max()), X),
    "added position by position": (["mixed"], on("first", lambda w, x: lax.psum(hidden(w, x), "data")), X),
    "a mean for each device": (
        ["mean"],
        lambda w, x: on("first", lambda w, x: hidden(w, x).mean()[None], out_specs=P("data"))(w, x).mean(),
        X,
    ),
    "a mean for each device, squared": (
        ["mixed"],
        lambda w, x: (on("first", lambda w, x: hidden(w, x).mean()[None], out_specs=P("data"))(w, x) ** 2).mean(),
        X,
    ),
    "a sum for each device, with decay": (
        ["sum"],
        lambda w, x: (
            on("first", lambda w, x: (hidden(w, x).sum() + (w**2).sum())[None], out_specs=P("data"))(w, x).sum()
        ),
        X,
    ),
    "a maximum for each device": (
        ["max"],
        lambda w, x: on("first", lambda w, x: hidden(w, x).max()[None], out_specs=P("data"))(w, x).max(),
        X,
    ),
    "gathered": (["mean"], on("first", lambda w, x: (lax.all_gather(hidden(w, x), "data", tiled=True) ** 2).mean()), X),
    "gathered along two axes": (
        ["concat"],
        on("two", lambda w, x: lax.all_gather(hidden(w, x), BOTH, tiled=True), (P(), P(BOTH))),
        X,
    ),
    "gathered along the inner axis": (
        ["concat"],
        on("two", lambda w, x: lax.all_gather(hidden(w, x), "fsdp", tiled=True), (P(), P(BOTH)), P("data")),
        X,
    ),
    "gathered along the outer axis": (
        ["mixed"],
        on("two", lambda w, x: lax.all_gather(hidden(w, x), "data", tiled=True), (P(), P(BOTH)), P("fsdp")),
        X,
    ),
    "contrastive": (
        ["mixed"],
        on(
            "first",
            lambda w, x: lax.pmean(
                jax.nn.logsumexp(hidden(w, x) @ lax.all_gather(hidden(w, x), "data", tiled=True).T, -1).mean(), "data"
            ),
        ),
        X,
    ),
    "sent on": (
        ["mixed"],
        on("first", lambda w, x: lax.ppermute(hidden(w, x), "data", [(0, 1), (1, 0)]), out_specs=P("data")),
        X,
    ),
    "position of the device": (
        ["mixed"],
        on("first", lambda w, x: lax.pmean((hidden(w, x) * lax.axis_index("data")).mean(), "data")),
        X,
    ),
    "position along another axis": (
        ["mean"],
        on("first", lambda w, x: lax.pmean((hidden(w, x) * lax.axis_index("model")).mean(), ("data", "model"))),
        X,
    ),
    "branch by position": (
        ["mixed"],
        on(
            "first",
            lambda w, x: lax.psum(lax.cond(lax.axis_index("data") == 0, jnp.sin, jnp.cos, hidden(w, x)).sum(), "data"),
        ),
        X,
    ),
    "branch by another position": (
        ["sum"],
        on(
            "first",
            lambda w, x: lax.psum(
                lax.cond(lax.axis_index("model") == 0, jnp.sin, jnp.cos, hidden(w, x)).sum(), ("data", "model")
            ),
        ),
        X,
    ),
    "weights of devices": (
        ["mixed"],
        on("first", lambda w, x: lax.psum((x @ w.T).sum(), "data"), (P("data"), P("data"))),
        X,
    ),
    "weights gathered, gradients shared out": (
        ["mean", "mean"],
        on("first", zero_step, (P("data"), P("data")), (P(), P("data"))),
        X,
    ),
    "decay of a device's weights": (
        ["sum"],
        on(
            "first",
            lambda w, x: lax.psum((hidden(lax.all_gather(w, "data", tiled=True), x)).sum() + (w**2).sum(), "data"),
            (P("data"), P("data")),
        ),
        X,
    ),
    "dropout": (["mean"], on("first", dropped), X),
    "loop over a device's examples": (
        ["sum", "concat"],
        on("first", chunks, (P(), P("data")), (P(), P("data"))),
        X,
    ),
    "collective in such a loop": (["mixed"], on("first", over_rows), X),
    "own positions": (["mean"], on("first", picked), X),
    "nested": (
        ["concat"],
        jax.shard_map(
            jax.shard_map(hidden, in_specs=(P(), P("fsdp")), out_specs=P("fsdp"), axis_names={"fsdp"}),
            mesh=MESHES["two"],
            in_specs=(P(), P("data")),
            out_specs=P("data"),
            axis_names={"data"},
        ),
        X,
    ),
    "columns by another axis": (
        ["mean"],
        on(
            "first",
            lambda w, x: lax.pmean(lax.psum((x @ w) ** 2, "model").mean(), "data"),
            (P("model"), P("data", "model")),
        ),
        X,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_shards(name: str) -> None:
    expected, fun, batch = CASES[name]
    case = case_of(fun, (W, batch))
    assert case.words == expected, [verdict.reason for verdict in case.proof.verdicts]
    assert_exact(case)
    for verdict in case.proof.verdicts:
        assert verdict.is_proved or verdict.reason.line


GRADIENTS: dict[str, Callable[[str, bool], Callable[..., Any]]] = {
    "mean": lambda mesh, check: on(mesh, mean_loss, check=check),
    "mean of rows": lambda mesh, check: lambda w, x: (
        on(mesh, hidden, out_specs=P("data"), check=check)(w, x) ** 2
    ).mean(),
    "masked mean": lambda mesh, check: loss_of_pair(on(mesh, masked, *PAIR_SPECS, check=check)),
    "a mean for each device": lambda mesh, check: lambda w, x: on(
        mesh, lambda w, x: hidden(w, x).mean()[None], out_specs=P("data"), check=check
    )(w, x).mean(),
    "contraction over devices": lambda mesh, check: on(
        mesh,
        lambda w, x: lax.pmean((lax.psum(jnp.sin(x) @ w, "model") ** 2).mean(), "data"),
        (P("model"), P("data", "model")),
        check=check,
    ),
    "rematerialized": lambda mesh, check: jax.checkpoint(on(mesh, mean_loss, check=check)),
    "dropout": lambda mesh, check: on(mesh, dropped, check=check),
    "decay": lambda mesh, check: on(
        mesh, lambda w, x: lax.psum((hidden(w, x)).sum(), "data") + (w**2).sum(), check=check
    ),
    "decay on each device": lambda mesh, check: on(
        mesh, lambda w, x: lax.psum((hidden(w, x)).sum() + (w**2).sum(), "data"), check=check
    ),
    "layers": layers,
    "layers, rematerialized": functools.partial(layers, remat=True),
}  # fmt: skip


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name: str, check: bool) -> None:
    mesh = "first" if check else "last"
    fun = jax.value_and_grad(GRADIENTS[name](mesh, check))
    weights = np.stack([W, W[::-1]]) if name.startswith("layers") else W
    case = case_of(fun, (weights, FIRST if name == "masked mean" else X))
    is_sum = name in ("masked mean", "decay", "decay on each device")
    # Of a rematerialised function that is checked, the size is not in the microbatch's program itself.
    words = [{"sum"}] if is_sum else [{"mean"}, {"sum"}] if check and name == "rematerialized" else [{"mean"}]
    assert set(case.words) in words, case.proof.verdicts
    assert_exact(case)


def counted(w: Any, batch: Any) -> Any:
    """A mean over what a mask keeps, wholly inside of the function of shards."""
    total, count = masked(w, batch)
    return total / count


def compiled_inside(w: Any, batch: Any) -> Any:
    share = jax.jit(lambda mask: mask / lax.psum(mask.sum(), "data"))
    e = ((hidden(w, batch["x"]) - batch["y"]) ** 2).sum(-1)
    return lax.psum((e * share(batch["mask"])).sum(), "data")


def counted_in_a_branch(w: Any, batch: Any) -> Any:
    return lax.cond(w[0, 0] > 5, lambda: 0 * counted(w, batch), lambda: counted(w, batch))


HOISTED = {"counted": counted, "in a compiled function": compiled_inside, "in a branch": counted_in_a_branch}


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("mesh", ["first", "last"])
@pytest.mark.parametrize("name", HOISTED)
def test_what_the_batch_decides_is_hoisted_out_of_shards(name: str, mesh: str, check: bool) -> None:
    fun = jax.value_and_grad(on(mesh, HOISTED[name], *PAIR_SPECS[:1], P(), check=check))
    case = case_of(fun, (W, FIRST))
    assert case.words == ["sum", "sum"], case.proof.verdicts
    assert_exact(case)
