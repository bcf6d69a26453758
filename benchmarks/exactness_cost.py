"""What `reduce="exact"` adds to the build of a step, as a share of the build.

    python benchmarks/exactness_cost.py [--repeats 3] [--goal 0.05]

The programs are `examples/gpt`, rewritten, and 48 layers of which each is written out. Each is built from a cold start
in a process of its own: from the call of the compiled step to its first result. What the proof adds is the trace of the
whole batch, the proof itself and the split of the program; the trace of one microbatch is needed without it as well.
Both are wall times of one build, so that whatever else the machine does falls on both. The last column is the share of
the CPU time, in which XLA's threads count in full; it varies less. The exit status is 1 when a median of wall times is
above the goal.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "gpt"
PROGRAMS = ("examples/gpt", "48 layers")


def example_step(folder: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The example's step, rewritten into a folder, and its arguments."""
    subprocess.run(
        [sys.executable, "-m", "mmrewrite", "build", str(EXAMPLE), "--out", folder], check=True, capture_output=True
    )
    (script,) = Path(folder).rglob("train.py")
    sys.path.insert(0, str(script.parent))
    import train

    config = train.TrainConfig()
    corpus = train.load_corpus(config.text)
    batch = next(train.windows(corpus.train, config.batch_size, config.context, config.seed))
    import jax

    return train.train_step, (train.create_state(config, corpus.vocab_size), batch, jax.random.key(1))


def deep_step(_: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Attention and an MLP 48 times, with a loss that is masked by token, and its arguments."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    import mmruntime as mm

    layers, width = 48, 16
    rng = np.random.default_rng(0)

    def weight(*shape: int) -> Any:
        return jnp.asarray(rng.normal(size=shape) / 8, jnp.float32)

    def block(p: Any, x: Any) -> Any:
        h = (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
        q, k, v = jnp.split(h @ p["qkv"], 3, axis=-1)
        x = x + jax.nn.softmax(jnp.einsum("bte,bse->bts", q, k)) @ v @ p["out"]
        return x + jax.nn.gelu(x @ p["up"]) @ p["down"]

    def loss(params: Any, batch: Any) -> Any:
        x = batch["x"]
        for index, p in enumerate(params):
            x = mm.task(block, name=f"block_{index}", task=mm.stage(index, layers))(p, x)
        e = ((x - batch["y"]) ** 2).mean(-1)
        return (e * batch["keep"]).sum() / batch["keep"].sum()

    def step(params: Any, batch: Any) -> Any:
        value, grads = mm.microbatch(jax.value_and_grad(loss), size=2, argnum=1, schedule="1f1b", reduce="exact")(
            params, batch
        )
        return jax.tree.map(lambda p, g: p - 0.01 * g, params, grads), value

    params = [
        {
            "qkv": weight(width, 3 * width),
            "out": weight(width, width),
            "up": weight(width, 64),
            "down": weight(64, width),
        }
        for _ in range(layers)
    ]
    x, y = rng.normal(size=(2, 16, 8, width)).astype(np.float32)
    batch = {"x": x, "y": y, "keep": (rng.random((16, 8)) > 0.3).astype(np.float32)}
    mesh = mm.MultiMesh(axis_sizes=(4, 2), axis_names=("stage", "data"))
    return mm.mjit(step, mesh=mesh), (params, batch)


def build(program: str) -> dict[str, float]:
    """Build one program here, and say what the proof added, in seconds."""
    from mmruntime._frontend.loops import exact_microbatch, microbatch

    spent: dict[str, list[float]] = {}
    worked: dict[str, list[float]] = {}

    def timed(module: Any, name: str) -> None:
        function = getattr(module, name)

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            started, working = time.perf_counter(), time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                spent.setdefault(name, []).append(time.perf_counter() - started)
                worked.setdefault(name, []).append(time.process_time() - working)

        setattr(module, name, run)

    timed(exact_microbatch, "trace")
    timed(microbatch, "trace_both")
    timed(exact_microbatch.TracedFunction, "prove")
    timed(microbatch, "TracedLoop")
    with tempfile.TemporaryDirectory() as folder:
        step, arguments = (example_step if program == PROGRAMS[0] else deep_step)(folder)
        started, working = time.perf_counter(), time.process_time()
        import jax

        jax.block_until_ready(step(*arguments))
        total, work = time.perf_counter() - started, time.process_time() - working

    def added(times: dict[str, list[float]]) -> float:
        return sum(times["trace_both"]) + sum(times["prove"]) + sum(times["TracedLoop"]) - times["trace"][0]

    whole_trace, split = spent["trace"][1], sum(spent["TracedLoop"])
    return {
        "build": total,
        "added": added(spent),
        "trace": whole_trace,
        "split": split,
        "cpu share": added(worked) / work,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--goal", type=float, default=0.05, help="the largest share of the build (default 0.05)")
    parser.add_argument("--program", choices=PROGRAMS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.program:
        print(json.dumps(build(args.program)))
        return 0
    import jax

    print(f"JAX {jax.__version__}; seconds, medians of {args.repeats} builds")
    titles = ("build", "added", "trace", "proof", "split", "share", "goal", "of CPU")
    print(f"{'':16}" + "".join(f"{title:>8}" for title in titles))
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    is_met = True
    for program in PROGRAMS:
        command = [sys.executable, __file__, "--program", program]
        found = []
        for _ in range(args.repeats):
            finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if finished.returncode:
                raise SystemExit(f"{program} failed:\n{finished.stdout}{finished.stderr}")
            found.append(json.loads(finished.stdout.splitlines()[-1]))
        middle = {name: statistics.median(each[name] for each in found) for name in found[0]}
        share = statistics.median(each["added"] / each["build"] for each in found)
        proof = middle["added"] - middle["trace"] - middle["split"]
        is_met = is_met and share <= args.goal
        print(
            f"{program:16}{middle['build']:8.2f}{middle['added']:8.2f}{middle['trace']:8.2f}{proof:8.2f}"
            f"{middle['split']:8.2f}{share:8.1%}{args.goal:8.0%}{middle['cpu share']:8.1%}"
        )
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
