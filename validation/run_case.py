"""Run a case of `score_annotate.py` in a process of its own, and save its results as arrays, with where they lie.

    python validation/run_case.py CASE.json OUT

CASE.json is a dictionary with `steps` and either

- `module`, `function` and `state`: `module.make()` returns arguments, and `module.function(*arguments)` a tuple that
  begins with as many next arguments as `state` says; or
- `program`, `step` and `start`: the program is run as a script, then the statement `start`, until the function named
  `step` that it compiles has been called `steps` times. Its results are those of the first call and the last, after the
  Flax objects among its arguments, which it changes in place. With `compile` = "mm.mjit" the rewritten step is meant.
  `microbatches` has the step take its batch part by part: see `by_microbatches`.

OUT.npz has the leaves by path, and OUT.json the devices and rows of the shards of each.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import jax
import numpy as np

LIBRARIES = ("jax", "flax", "equinox", "haiku", "optax", "mmruntime")
COMPILERS = ("jax.jit", "jax.pmap", "flax.nnx.jit", "equinox.filter_jit", "haiku.jit")
GRADIENTS = (
    "jax.grad",
    "jax.value_and_grad",
    "flax.nnx.grad",
    "flax.nnx.value_and_grad",
    "equinox.filter_grad",
    "equinox.filter_value_and_grad",
)


class EnoughSteps(BaseException):
    """Ends a program whose step has been called often enough."""


def main() -> None:
    told, out = json.loads(Path(sys.argv[1]).read_text()), sys.argv[2]
    sys.path.insert(0, "")
    save(record_program(told) if "program" in told else take_steps(told), out)


def take_steps(told: dict[str, Any]) -> Any:
    """What a function returns when its results have been its arguments several times."""
    module = importlib.import_module(told["module"])
    arguments, count = module.make(), int(told["state"])
    for _ in range(told["steps"] if count else 1):
        result = getattr(module, told["function"])(*arguments)
        arguments = (*result[:count], *arguments[count:])
    return result


def record_program(told: dict[str, Any]) -> Any:
    """Run a program until its step has been called often enough; results of the last call, then those of the first."""
    if told.get("float64"):
        jax.config.update("jax_enable_x64", True)
        jax.numpy.float32 = jax.numpy.float64  # before anything else is imported, which reads it as a default
    for name in told.get("stand_ins", ()):
        sys.modules[name] = MagicMock()
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(importlib.import_module(parent), last, sys.modules[name])
    recorded: list[tuple[Any, ...]] = []
    compilers = ("mmruntime.mjit",) if told["compile"] == "mm.mjit" else COMPILERS
    for name in compilers:
        replace(name, functools.partial(recording, told["step"], told["steps"], recorded))
    if "microbatches" in told and told["compile"] != "mm.mjit":
        for name in GRADIENTS:
            replace(name, functools.partial(by_microbatches, told["microbatches"]))
    namespace: dict[str, Any] = {"__name__": "program", "__file__": told["program"] + ".py"}
    try:
        if Path("prepare.py").exists():
            exec(compile(Path("prepare.py").read_text(), "prepare.py", "exec"), {"__name__": "prepare"})
        module = importlib.import_module(told["program"])
        namespace = vars(module)
        exec(told.get("start", ""), namespace)
    except EnoughSteps:
        return (*recorded[-1], *recorded[0])
    raise SystemExit(f"{told['step']} was called {len(recorded)} times, not {told['steps']}")


def replace(name: str, by: Callable[[Any], Any]) -> None:
    """Put another function in the place of one of a module, which may be missing."""
    module_name, _, attribute = name.rpartition(".")
    try:
        module = importlib.import_module(module_name)
        setattr(module, attribute, by(getattr(module, attribute)))
    except (ImportError, AttributeError):
        return


def recording(step: str, steps: int, recorded: list[tuple[Any, ...]], compiler: Callable[..., Any]) -> Any:
    """A compiler whose compiled function of the name `step` has its results recorded."""

    def compiling(*functions: Any, **options: Any) -> Any:
        if not functions:
            return lambda function: compiling(function, **options)
        compiled = compiler(*functions, **options)
        # Equinox and Flax compile what they wrap, which has the same name, by `jax.jit`.
        if getattr(functions[0], "__name__", "") != step or called_by_library():
            return compiled

        @functools.wraps(functions[0])
        def called(*arguments: Any, **keywords: Any) -> Any:
            result = compiled(*arguments, **keywords)
            alone = not isinstance(result, tuple) or hasattr(result, "_fields")
            results = (result,) if alone else result
            objects = [state_of(each) for each in (*arguments, *keywords.values())]
            state = [each for each in objects if each is not None]
            # The program's own mesh does not hold the devices of all stages.
            with jax.set_mesh(None):
                recorded.append(tuple(jax.tree.map(copied, each) for each in (*state, *results)))
            if len(recorded) == steps:
                raise EnoughSteps
            return result

        return called

    return compiling


def called_by_library() -> bool:
    """Whether the caller of the function that asks is one of the libraries, and not the program."""
    return sys._getframe(2).f_globals["__name__"].partition(".")[0] in LIBRARIES


def copied(leaf: Any) -> Any:
    """A leaf that later steps cannot give away."""
    return leaf.copy() if isinstance(leaf, jax.Array) else leaf


def state_of(value: Any) -> Any:
    """The arrays of a Flax object, None for anything else."""
    if "flax.nnx" not in sys.modules:
        return None
    from flax import nnx

    return nnx.to_pure_dict(nnx.state(value)) if isinstance(value, nnx.Pytree) else None


def by_microbatches(told: dict[str, Any], gradient: Callable[..., Any]) -> Any:
    """A function like `jax.value_and_grad`, in a loop over parts of the batch: what a careful person writes by hand.

    Args:
        told: `count` parts of the arguments at the positions `batch`, or with these names, along their first
            dimension. The argument `rng` is a key, with which part `i` takes `fold_in(key, i)`, or an nnx object, of
            whose keys the same is true. Loss and gradients are means of those of the parts; `auxiliary` says whether
            auxiliary results are "mean", "sum" or "concat". `builtins.part_of_batch` is the number of the part.
        gradient: The function that is put on a function to get its gradient.
    """

    def transform(*functions: Any, **options: Any) -> Any:
        if not functions:
            return lambda function: transform(function, **options)
        compute, count = gradient(*functions, **options), told["count"]
        if called_by_library():
            return compute
        valued = "value" in gradient.__name__

        def cut(value: Any, part: int) -> Any:
            def rows(leaf: Any) -> Any:
                size = leaf.shape[0] // count
                return leaf[part * size : (part + 1) * size]

            return jax.tree.map(rows, value)

        def computed(*arguments: Any, **keywords: Any) -> Any:
            found = []
            streams = random_streams({**dict(enumerate(arguments)), **keywords}.get(told.get("rng")))
            before = [(each.key[...], each.count[...]) for each in streams]
            for part in range(count):
                builtins.part_of_batch = part  # type: ignore[attr-defined]
                for each, (key, drawn) in zip(streams, before, strict=True):
                    each.key[...], each.count[...] = jax.random.fold_in(key, part), drawn
                given = {**dict(enumerate(arguments)), **keywords}
                for place in told["batch"]:
                    given[place] = cut(given[place], part)
                if "rng" in told and not streams:
                    given[told["rng"]] = jax.random.fold_in(given[told["rng"]], part)
                positional = [given[place] for place in range(len(arguments))]
                found.append(compute(*positional, **{name: given[name] for name in keywords}))

            for each, (key, _) in zip(streams, before, strict=True):
                each.key[...] = key

            def combined(way: str) -> Callable[..., Any]:
                def combine(*leaves: Any) -> Any:
                    if leaves[0] is None or not hasattr(leaves[0], "dtype"):
                        return leaves[0]
                    if way == "concat":
                        return jax.numpy.concatenate(leaves)
                    return sum(leaves) / (count if way == "mean" else 1)

                return combine

            def together(parts: Sequence[Any], way: str) -> Any:
                return jax.tree.map(combined(way), *parts)

            if not options.get("has_aux"):
                return together(found, "mean")
            auxiliary = [each[0][1] if valued else each[1] for each in found]
            others = together(auxiliary, told.get("auxiliary", "mean"))
            if not valued:
                return together([each[0] for each in found], "mean"), others
            losses, gradients = [each[0][0] for each in found], [each[1] for each in found]
            return (together(losses, "mean"), others), together(gradients, "mean")

        return computed

    return transform


def random_streams(value: Any) -> list[Any]:
    """The random streams of an nnx object, none for anything else."""
    if state_of(value) is None:
        return []
    from flax import nnx

    return [node for _, node in nnx.iter_graph(value) if isinstance(node, nnx.RngStream)]


def save(result: Any, out: str) -> None:
    """Write the arrays among the leaves, and the devices and rows of their shards."""
    leaves = [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(result)]
    # Equinox keeps functions, strings and numbers in its trees.
    leaves = [(path, leaf) for path, leaf in leaves if isinstance(leaf, jax.Array | np.ndarray | np.generic)]

    def rows(shard: Any, leaf: Any) -> list[list[int]]:
        return [list(part.indices(size)[:2]) for part, size in zip(shard.index, leaf.shape, strict=False)]

    shards = {
        path: [[each.device.id, rows(each, leaf)] for each in getattr(leaf, "addressable_shards", ())]
        for path, leaf in leaves
    }
    Path(out + ".json").write_text(json.dumps({"shards": shards}))

    def values(leaf: Any) -> np.ndarray:
        typed = isinstance(leaf, jax.Array) and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return np.asarray(jax.random.key_data(leaf) if typed else leaf)

    np.savez(out, **{path: values(leaf) for path, leaf in leaves})


if __name__ == "__main__":
    main()
