"""Random functions of parameters and a batch, all of whose intermediate values are results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

Op = tuple[Callable[..., Any], tuple[int, ...]]

UNARY = {
    "tanh": jnp.tanh,
    "square": lambda x: x**2,
    "cube": lambda x: x**3,
    "neg": lambda x: -x,
    "half": lambda x: 0.5 * x,
    "exp": lambda x: jnp.exp(jnp.clip(x, -3, 3)),
    "relu": lambda x: jnp.maximum(x, 0.0),
    "abs": jnp.abs,
    "stop": jax.lax.stop_gradient,
    "plus": lambda x: x + 1.5,
    "sigmoid": jax.nn.sigmoid,
    "sqrt": lambda x: jnp.sqrt(1 + x**2),
    "single": lambda x: x.astype(jnp.float32).astype(jnp.float64) * 0 + x,
    "positive": lambda x: jnp.where(x > 0, x, 0.0),
    "count": lambda x: (x > 0).astype(jnp.float64),
    "jitted": lambda x: jax.jit(lambda y: jnp.tanh(y) + y)(x),
    "remat": lambda x: jax.checkpoint(lambda y: jnp.sin(y) * y)(x),
    "softplus": jax.nn.softplus,
    "silu": jax.nn.silu,
    "over_size": lambda x: x / x.size,
    "over_rows": lambda x: x / max(x.shape[0] if x.ndim else 1, 1),
}
BINARY = {
    "add": jnp.add,
    "sub": jnp.subtract,
    "mul": jnp.multiply,
    "div": lambda x, y: x / (1.0 + y**2),
    "max": jnp.maximum,
    "where": lambda x, y: jnp.where(x > y, x, y),
    "choose": lambda x, y: jnp.where(x > 0, y, -y),
}
ALONG = {
    "sum": jnp.sum,
    "mean": jnp.mean,
    "max": jnp.max,
    "min": jnp.min,
    "var": jnp.var,
    "softmax": jax.nn.softmax,
    "log_softmax": jax.nn.log_softmax,
    "logsumexp": jax.nn.logsumexp,
    "cumsum": jnp.cumsum,
    "sort": jnp.sort,
    "flip": jnp.flip,
    "kept_sum": lambda x, axis: jnp.sum(x, axis=axis, keepdims=True),
    "centered": lambda x, axis: x - x.mean(axis=axis, keepdims=True),
    "normed": lambda x, axis: x / (1.0 + jnp.abs(x).sum(axis=axis, keepdims=True)),
    "argsort": lambda x, axis: jnp.take_along_axis(x, jnp.argsort(x, axis=axis), axis=axis),
    "first": lambda x, axis: jax.lax.slice_in_dim(x, 0, 1, axis=axis),
    "all_but": lambda x, axis: jax.lax.slice_in_dim(x, 0, max(x.shape[axis] - 1, 1), axis=axis),
    "argmax": lambda x, axis: jnp.argmax(x, axis=axis).astype(jnp.float64),
    "one_hot_max": lambda x, axis: (
        x * jax.nn.one_hot(jnp.argmax(x, axis=axis), x.shape[axis], axis=axis, dtype=x.dtype)
    ),
    "prod": lambda x, axis: jnp.prod(jnp.tanh(x), axis=axis),
    "pad": lambda x, axis: jnp.pad(x, [(1, 0) if i == axis else (0, 0) for i in range(x.ndim)]),
    "roll": lambda x, axis: jnp.roll(x, 1, axis=axis),
    "scan": lambda x, axis: jax.lax.scan(
        lambda c, r: (jnp.tanh(c + r), c * r), jnp.zeros(np.delete(x.shape, axis)), jnp.moveaxis(x, axis, 0)
    )[1],
    "scan_sum": lambda x, axis: jax.lax.scan(
        lambda c, r: (c + jnp.sin(r).sum(), jnp.cos(r)), jnp.ones(()), jnp.moveaxis(x, axis, 0)
    )[0],
    "map": lambda x, axis: jax.lax.map(lambda r: jnp.tanh(r) * r.sum(), jnp.moveaxis(x, axis, 0)),
    "doubled": lambda x, axis: jnp.concatenate([x, jnp.tanh(x)], axis=axis),
    "halves": lambda x, axis: sum(jnp.split(jnp.concatenate([x, jnp.cos(x)], axis=axis), 2, axis=axis)),
    "stack": lambda x, axis: jnp.stack([x, jnp.sin(x)], axis=axis),
    "gather": lambda x, axis: jnp.take(x, jnp.array([0, 0]), axis=axis),
    "segment": lambda x, axis: jax.ops.segment_sum(
        jnp.moveaxis(x, axis, 0), jnp.abs(x).sum(axis=tuple(i for i in range(x.ndim) if i != axis)).astype(int) % 3, 3
    ),
    "positions": lambda x, axis: (
        x * jnp.arange(x.shape[axis], dtype=x.dtype).reshape([-1 if i == axis else 1 for i in range(x.ndim)])
    ),
    "loop": lambda x, axis: jax.lax.fori_loop(0, 3, lambda i, c: jnp.tanh(c) + x * i.astype(x.dtype), x),
    "vmapped": lambda x, axis: jax.vmap(lambda r: r - r.mean(), in_axes=axis, out_axes=axis)(x),
    "cond": lambda x, axis: jax.lax.cond(x.shape[axis] > 1, jnp.sin, jnp.cos, x),
    "masked_mean": lambda x, axis: (
        jnp.where(x > 0, x, 0).sum(axis=axis) / jnp.maximum((x > 0).sum(axis=axis), 1).astype(x.dtype)
    ),
    "diagonal": lambda x, axis: x[jnp.arange(x.shape[0]), jnp.zeros(x.shape[0], int)] if x.ndim > 1 else x,
    "top": lambda x, axis: jnp.moveaxis(jax.lax.top_k(jnp.moveaxis(x, axis, -1), 1)[0], -1, axis),
    "write": lambda x, axis: jnp.zeros_like(x).at[(slice(None),) * axis + (0,)].set(x.take(0, axis=axis)),
    "update": lambda x, axis: jax.lax.dynamic_update_slice_in_dim(x, jnp.ones_like(x)[:1], 0, axis=0),
    "total_of": lambda x, axis: x / (1.0 + jnp.abs(x).sum()),
    "while": lambda x, axis: jax.lax.while_loop(lambda s: s[0] < 2, lambda s: (s[0] + 1, s[1] + jnp.sin(s[1])), (0, x))[
        1
    ],
    "free_cond": lambda x, axis: jax.lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x),
}

# With sums that the batch alone may decide.
COMPILED = {
    "over_total": lambda x, y: x / (1.0 + jnp.abs(y).sum()),
    "weighted": lambda x, y: (x * y).sum() / (1.0 + jnp.abs(y).sum()) if x.shape == y.shape else x * y.sum(),
    "shifted": lambda x, y: x - y.mean(axis=0).sum() if y.ndim else x - y,
}

MESH = Mesh(np.asarray(jax.devices()[:2]), ("data",))


def _on_shards(function: Callable[..., Any], axis: int, *, whole: bool) -> Callable[..., Any]:
    """A function of shards along a dimension, whose result is whole, or split as its operand is."""
    spec = PartitionSpec(*[None] * axis, "data")
    out = PartitionSpec() if whole else spec
    return jax.shard_map(function, mesh=MESH, in_specs=spec, out_specs=out, check_vma=False)


def _two_halves(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, axis: function(x, axis) if x.shape[axis] % 2 == 0 else jnp.tanh(x)


def _whole(function: Callable[..., Any]) -> Callable[..., Any]:
    return _two_halves(lambda x, axis: _on_shards(lambda x: function(x, axis), axis, whole=True)(x))


def _split(function: Callable[..., Any]) -> Callable[..., Any]:
    return _two_halves(lambda x, axis: _on_shards(lambda x: function(x, axis), axis, whole=False)(x))


# Of shards along the dimension `axis`.
SHARDED = {
    "rows": _split(lambda x, axis: jnp.tanh(x) * x),
    "mean": _whole(lambda x, axis: jax.lax.pmean(x.mean(), "data")),
    "sum": _whole(lambda x, axis: jax.lax.psum(x.sum(axis=axis), "data")),
    "largest": _whole(lambda x, axis: jax.lax.pmax(x.max(axis=axis), "data")),
    "smallest": _whole(lambda x, axis: jax.lax.pmin(x.min(), "data")),
    "one device's": _whole(lambda x, axis: x.sum(axis=axis)),
    "centered": _split(lambda x, axis: x - jax.lax.pmean(x.mean(axis=axis, keepdims=True), "data")),
    "centered on a device": _split(lambda x, axis: x - x.mean(axis=axis, keepdims=True)),
    "gathered": _whole(lambda x, axis: jax.lax.all_gather(jnp.sin(x), "data", axis=axis, tiled=True)),
    "gathered apart": _whole(lambda x, axis: jax.lax.all_gather(jnp.sin(x), "data")),
    "position": _split(lambda x, axis: x * (1.0 + jax.lax.axis_index("data"))),
    "branch": _split(lambda x, axis: jax.lax.cond(jax.lax.axis_index("data") == 0, jnp.sin, jnp.cos, x)),
    "sent": _split(lambda x, axis: jax.lax.ppermute(x, "data", [(0, 1), (1, 0)])),
    "added up": _whole(lambda x, axis: jax.lax.psum(x, "data")),
    "kept": _whole(
        lambda x, axis: (
            jax.lax.psum(jnp.where(x > 0, x, 0).sum(), "data") / (1.0 + jax.lax.psum((x > 0).sum(), "data"))
        )
    ),
    "each device's": _two_halves(
        lambda x, axis: (
            jax.shard_map(
                lambda x: jnp.sin(x).sum()[None] + 0.5,
                mesh=MESH,
                in_specs=PartitionSpec(*[None] * axis, "data"),
                out_specs=PartitionSpec("data"),
                check_vma=False,
            )(x).sum()
        )
    ),
    "scan": _whole(
        lambda x, axis: jax.lax.psum(
            jax.lax.scan(lambda c, r: (c + jnp.sin(r).sum(), None), jnp.zeros(()), jnp.moveaxis(x, axis, 0))[0], "data"
        )
    ),
    "mapped": lambda x, axis: jax.vmap(lambda r: r - jax.lax.pmean(r, "i"), axis, axis, axis_name="i")(x),
    "mapped sum": lambda x, axis: jax.vmap(lambda r: jax.lax.psum(jnp.sin(r), "i"), axis, None, axis_name="i")(x),
    "mapped position": lambda x, axis: jax.vmap(lambda r: r * jax.lax.axis_index("i"), axis, axis, axis_name="i")(x),
    "mapped gather": lambda x, axis: jax.vmap(lambda r: jax.lax.all_gather(r, "i"), axis, None, axis_name="i")(x),
}  # fmt: skip


def _column(x: Any, rank: int, axis: int) -> Any:
    return x.reshape([-1 if dim == axis else 1 for dim in range(rank)])


def _reshape(x: Any, choice: int) -> Any:
    """Merge two neighbouring dimensions, or split one by two or three."""
    if x.ndim > 1 and choice % 3:
        at = choice % (x.ndim - 1)
        return x.reshape(*x.shape[:at], -1, *x.shape[at + 2 :])
    at = choice % max(x.ndim, 1)
    if x.ndim == 0:
        return x.reshape(1)
    size = 2 if choice % 2 else 3
    if x.shape[at] % size:
        return x
    pair = (size, x.shape[at] // size) if choice % 5 < 2 else (x.shape[at] // size, size)
    return x.reshape(*x.shape[:at], *pair, *x.shape[at + 1 :])


class Program:
    """A random function; `run(params, batch)` gives all of its values.

    Args:
        seed: Of all that is random.
        length: How many operations it has.
        compiled: Whether each operation is a compiled function, which is called again where another value fits, so that
            calls share what JAX traced once.
        sharded: Whether functions of shards and collectives are among them.
    """

    def __init__(self, seed: int, length: int = 10, *, compiled: bool = False, sharded: bool = False) -> None:
        self.compiled = compiled
        self.sharded = sharded
        self.rng = np.random.default_rng(seed)
        self.ops: list[Op] = []
        self.names: list[str] = []
        self.sizes = (2, 3)
        self.b, self.n = [(4, 3), (6, 2), (2, 3), (4, 2)][seed % 4]
        self.params = {"w": self._draw(2, 3), "v": self._draw(3), "s": self._draw()}
        self.batch = {"x": self._draw(self.n * self.b, 2, 3), "y": self._draw(self.n * self.b, 3)}
        self.shapes = [self._values(self.b), self._values(self.b * self.n)]
        while len(self.ops) < length:
            self._grow()

    def _draw(self, *shape: int) -> Any:
        return jnp.asarray(self.rng.normal(size=shape))

    def _values(self, size: int) -> list[Any]:
        batch = {name: jax.ShapeDtypeStruct((size, *x.shape[1:]), x.dtype) for name, x in self.batch.items()}
        leaves = jax.tree.leaves((self.params, batch))
        return [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]

    def _grow(self) -> None:
        name, function, count = self._choose()
        total = len(self.shapes[0])
        # The newer a value is, the more likely it is read.
        weights = np.arange(1, total + 1.0)
        reads = tuple(int(i) for i in self.rng.choice(total, size=count, p=weights / weights.sum()))
        if count == 2 and self.rng.random() < 0.4:
            # A parameter.
            reads = (reads[0], int(self.rng.integers(0, len(self.params))))
        try:
            outs = [jax.eval_shape(function, *(shapes[i] for i in reads)) for shapes in self.shapes]
        except (TypeError, ValueError, IndexError, ZeroDivisionError):
            return
        if max(np.prod(out.shape) for out in outs) > 2000 or outs[0].dtype != np.float64:
            return
        calls = [reads]
        if self.compiled:
            function = jax.jit(function)
            calls += self._other_reads(reads)
        for each in calls:
            self.ops.append((function, each))
            self.names.append(name)
            for shapes, out in zip(self.shapes, outs, strict=True):
                shapes.append(out)

    def _other_reads(self, reads: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Other values of the same shapes, if there are any."""

        def fits(one: int, other: int) -> bool:
            return all(shapes[one].shape == shapes[other].shape for shapes in self.shapes)

        found = [[i for i in range(len(self.shapes[0])) if i != read and fits(i, read)] for read in reads]
        return [tuple(int(self.rng.choice(each)) for each in found)] if all(found) else []

    def _choose(self) -> tuple[str, Callable[..., Any], int]:
        kind = self.rng.choice(["unary", "binary", "along", "reshape", "transpose", "dot", "total"], p=_WEIGHTS)
        choice = int(self.rng.integers(0, 1000))
        if self.compiled and choice % 3 == 0:
            name = str(self.rng.choice(list(COMPILED)))
            return name, COMPILED[name], 2
        if self.sharded and choice % 2 == 0:
            name = str(self.rng.choice(list(SHARDED)))
            return name, lambda x: SHARDED[name](x, axis=choice // 2 % x.ndim), 1
        if kind == "unary":
            name = str(self.rng.choice(list(UNARY)))
            return name, UNARY[name], 1
        if kind == "binary":
            name = str(self.rng.choice(list(BINARY)))
            return name, lambda x, y: BINARY[name](*_aligned(x, y)), 2
        if kind == "along":
            name = str(self.rng.choice(list(ALONG)))
            return f"{name}", lambda x: ALONG[name](x, axis=choice % x.ndim), 1
        if kind == "reshape":
            return "reshape", lambda x: _reshape(x, choice), 1
        if kind == "transpose":
            return "transpose", lambda x: jnp.moveaxis(x, choice % x.ndim, (choice // 7) % x.ndim), 1
        if kind == "total":
            return "total", [jnp.sum, jnp.mean, jnp.max, lambda x: jnp.mean(x**2)][choice % 4], 1
        return "dot", lambda x, y: _dot(x, y, choice), 2

    def run(self, params: Any, batch: Any) -> list[Any]:
        values = list(jax.tree.leaves((params, batch)))
        given = len(values)
        for function, reads in self.ops:
            values.append(function(*(values[i] for i in reads)))
        return values[given:]

    def value_and_grad(self, params: Any, batch: Any) -> Any:
        """A reduction of two values, and its gradient."""

        def loss(params: Any) -> Any:
            values = self.run(params, batch)
            return values[-1].mean() + 0.5 * values[len(values) // 2].sum()

        return jax.value_and_grad(loss)(params)


_WEIGHTS = [0.15, 0.2, 0.3, 0.08, 0.05, 0.14, 0.08]


def _aligned(x: Any, y: Any) -> tuple[Any, Any]:
    """Two arrays of ranks that broadcast: dimensions of one are added in front, else behind."""
    if x.ndim == y.ndim or not x.ndim or not y.ndim:
        return x, y
    small, large = (x, y) if x.ndim < y.ndim else (y, x)
    if small.shape == large.shape[-small.ndim :]:
        small = small.reshape((1,) * (large.ndim - small.ndim) + small.shape)
    else:
        small = small.reshape(small.shape + (1,) * (large.ndim - small.ndim))
    return (small, large) if x.ndim < y.ndim else (large, small)


def _dot(x: Any, y: Any, choice: int) -> Any:
    left, right = choice % x.ndim, (choice // 5) % y.ndim
    if choice % 3 or x.ndim < 2 or y.ndim < 2:
        return jnp.tensordot(x, y, axes=([left], [right]))
    # A batched product over the first dimensions.
    return jax.vmap(lambda a, b: jnp.tensordot(a, b, axes=([left % a.ndim], [right % b.ndim])))(x, y)
