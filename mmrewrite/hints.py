"""Hints as decorators, context managers and calls: `from mmrewrite import hints`.

Every function here is a no-op that returns its first argument unchanged, so the hinted program runs as if the hints
were not there. `mmrewrite` reads the calls from the source and removes them together with the import. The page
docs/hints.md says what each directive means, and how to write it as a comment.

    hints.mesh(stage=4, data=2)
    hints.axes(batch="data", mlp="model")

    @hints.task(stage=0)
    def encode(params, x): ...

    for block in hints.stages(self.blocks):
        x = block(x)

    loss, grads = hints.microbatch(jax.value_and_grad(loss_fn), size=8)(params, batch)
    step = hints.mjit(jax.jit(step))

Only the standard library is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

__all__ = (
    "axes",
    "gather",
    "ignore",
    "mesh",
    "microbatch",
    "mjit",
    "off",
    "on",
    "parallelize",
    "register",
    "shard",
    "stages",
    "task",
    "verify",
)

Names = str | tuple[str, ...] | None
"""The logical names of one dimension: one name, several, or None."""

Positions = int | str | tuple[int | str, ...] | None
"""Which arguments of a function: positions, or names of parameters; one or several."""

_Value = TypeVar("_Value")
_Callable = TypeVar("_Callable", bound=Callable[..., Any])


class Mark:
    """The result of a hint without a subject: a decorator and a context manager without effect."""

    __slots__ = ()

    def __call__(self, definition: _Callable, /) -> _Callable:
        """Return the function or class unchanged."""
        return definition

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exception: object) -> None:
        return None


_MARK = Mark()


def mesh(**axes: int) -> None:
    """Declare the mesh by the sizes of its axes: a statement, `hints.mesh(stage=4, data=2)`."""


def axes(*pairs: tuple[str, Names], **names: Names) -> None:
    """Map logical axis names to device axes: a statement, `hints.axes(batch="data", embed=None)`."""


def register(regex: str, **slice: int | str) -> None:
    """Place scopes whose name matches a pattern: a statement, `hints.register(r"h_(\\d+)", stage="int({0}) // 3")`."""


@overload
def task(function: _Callable, /, name: str | None = None, **slice: int) -> _Callable: ...
@overload
def task(name: str | None = None, **slice: int) -> Mark: ...
def task(*subject: Any, **slice: Any) -> Any:
    """Run a function, a Flax module, a call or a block as a task on a slice of the mesh.

    A decorator, `@hints.task(stage=0)`; a block, `with hints.task("encoder", stage=0):`; or a call around the callee,
    `hints.task(self.encoder, stage=0)(x)`.
    """
    return subject[0] if subject and callable(subject[0]) else _MARK


def stages(
    layers: _Value,
    /,
    axis: str = "stage",
    *,
    weights: Sequence[float] | str | None = None,
    chunks: int | None = None,
    placement: str | None = None,
) -> _Value:
    """Deal the iterations of a loop out to the stages: `for block in hints.stages(self.blocks):`."""
    return layers


@overload
def microbatch(
    subject: _Value,
    /,
    size: int | None = None,
    *,
    count: int | None = None,
    dim: int | tuple[int, ...] = 0,
    argnum: Positions = None,
    schedule: str | None = None,
    memory_bytes: int | str | None = None,
    reduce: object = None,
    check: bool = True,
    batch_stats: str | None = None,
    sync: str | None = None,
    all_gather: str | None = None,
    accumulate: str = "float32",
    slices: int | None = None,
    rng: Positions = None,
) -> _Value: ...
@overload
def microbatch(
    *,
    size: int | None = None,
    count: int | None = None,
    dim: int | tuple[int, ...] = 0,
    argnum: Positions = None,
    schedule: str | None = None,
    memory_bytes: int | str | None = None,
    reduce: object = None,
    check: bool = True,
    batch_stats: str | None = None,
    sync: str | None = None,
    all_gather: str | None = None,
    accumulate: str = "float32",
    slices: int | None = None,
    rng: Positions = None,
) -> Mark: ...
def microbatch(*subject: Any, **details: Any) -> Any:
    """Take the gradient microbatch by microbatch: `hints.microbatch(jax.value_and_grad(f), size=8)(params, batch)`.

    Around the iterable of a loop that accumulates gradients by hand, it makes the iterations the microbatches.
    """
    return subject[0] if subject else _MARK


@overload
def shard(value: _Value, /, *names: Names) -> _Value: ...
@overload
def shard(*, from_annotations: bool = False, **layouts: tuple[Names, ...]) -> Mark: ...
def shard(*value: Any, **layouts: Any) -> Any:
    """Fix the layout of a value by the logical names of its dimensions: `hints.shard(x, "batch", None)`.

    As a decorator it is about parameters and the result `out`: `@hints.shard(x=("batch", None), out=("batch", "mlp"))`.
    """
    return value[0] if value else _MARK


@overload
def mjit(function: _Callable, /) -> _Callable: ...
@overload
def mjit() -> Mark: ...
def mjit(*function: Any) -> Any:
    """Compile a step for the mesh: `@hints.mjit` above `@jax.jit`, or `hints.mjit(jax.jit(step))`."""
    return function[0] if function else _MARK


@overload
def parallelize(function: _Callable, /, **how: Any) -> _Callable: ...
@overload
def parallelize(**how: Any) -> Mark: ...
def parallelize(*function: Any, **how: Any) -> Any:
    """Compile a step, its initialiser and its input: `@hints.parallelize(init_params=init)` above `@jax.jit`."""
    return function[0] if function else _MARK


def gather(value: _Value, /) -> _Value:
    """Copy what lies on several submeshes to one place, for code outside of steps: `hints.gather(model)(x)`."""
    return value


@overload
def verify(function: _Callable, /, **how: Any) -> _Callable: ...
@overload
def verify(**how: Any) -> Mark: ...
def verify(*function: Any, **how: Any) -> Any:
    """Have `mmrewrite verify` compare the function before and after: `@hints.verify(args=make_arguments)`."""
    return function[0] if function else _MARK


def off() -> Mark:
    """Switch off the hints below, up to `hints.on()`; with `with hints.off():`, those in the block."""
    return _MARK


def on() -> None:
    """Switch hints on again below `hints.off()`."""


def ignore(*codemods: str) -> Mark:
    """Keep the named codemods away from a definition, as a decorator, or from the block of a `with`."""
    return _MARK
