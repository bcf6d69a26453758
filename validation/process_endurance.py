"""Run many steps without reading a result, and many jobs, in two processes under CPU load: nothing may hang or differ.

    python validation/process_endurance.py [--steps 200] [--jobs 0] [--load CORES] [--limit 300]

Four devices in two processes are two stages of two devices each: first one stage in each process, then both stages over
both processes, with collectives between them. Each trains `--steps` steps of which no result is read before the end.
With `--jobs 200`, 200 such jobs of ten steps follow, each started anew. As many programs as `--load` says use the CPU
meanwhile. A job that takes longer than `--limit` seconds hangs: the stacks of its processes are shown. All jobs of one
kind must end with the same losses and parameters, bit for bit. Ends with 1 if one does not.
"""

from __future__ import annotations

import argparse
import faulthandler
import hashlib
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

PROCESSES, DEVICES, WIDTH, MICROBATCHES = 2, 2, 16, 4
STEPS_OF_A_JOB = 10
# The order of devices: a stage in each process, or both stages over both.
KINDS = {"within": (0, 1, 2, 3), "spanning": (0, 2, 1, 3)}


def child(options: argparse.Namespace) -> None:
    """One process of a job; the last line of its output are a loss and the digest of what it holds."""
    faulthandler.dump_traceback_later(options.limit, exit=True)
    import mmruntime as mm

    mm.init(cpus=DEVICES, coordinator_address=options.coordinator, num_processes=PROCESSES, process_id=options.child)
    import jax
    import jax.numpy as jnp
    import numpy as np

    devices = [jax.devices()[number] for number in KINDS[options.kind]]
    mesh = mm.MultiMesh(axis_sizes=(2, 2), axis_names=("stage", "data"), devices=devices)
    rng = np.random.default_rng(0)

    def layer(w: Any, x: Any) -> Any:
        return jnp.tanh(mm.with_sharding_constraint(x, jax.sharding.PartitionSpec("data", None)) @ w)

    def loss(params: Any, batch: Any) -> Any:
        x = batch["x"]
        for stage, w in enumerate(params):
            x = mm.task(layer, task=mm.Task(name=f"layer_{stage}", mesh_slice={"stage": stage}))(w, x)
        return jnp.mean((x - batch["y"]) ** 2)

    def train(state: Any, batch: Any) -> Any:
        gradients = mm.microbatch(jax.value_and_grad(loss), argnum=1, count=MICROBATCHES, schedule="1f1b")
        value, grads = gradients(state["params"], batch)
        moment = jax.tree.map(lambda m, g: 0.9 * m + g, state["moment"], grads)
        params = jax.tree.map(lambda w, m: w - 1e-2 * m, state["params"], moment)
        return {"params": params, "moment": moment}, value

    params = [rng.normal(size=(WIDTH, WIDTH)).astype(np.float32) / np.float32(4) for _ in range(2)]
    state: Any = {"params": params, "moment": [w * 0 for w in params]}
    batch = {name: rng.normal(size=(4 * MICROBATCHES, WIDTH)).astype(np.float32) for name in "xy"}
    step = mm.mjit(train, mesh=mesh, donate_argnums=0)
    value: Any = float("nan")
    for _ in range(options.steps):
        state, value = step(state, batch)
    digest = hashlib.blake2b(digest_size=8)
    for array in jax.tree.leaves(state):
        for shard in array.addressable_shards:
            digest.update(np.asarray(shard.data).tobytes())
    print(f"{float(value):.9g} {digest.hexdigest()}", flush=True)


def job(kind: str, steps: int, options: argparse.Namespace) -> tuple[str, ...]:
    """The last line of each process of a job.

    Raises:
        SystemExit: If one fails or takes too long.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [sys.executable, __file__, "--kind", kind, "--steps", str(steps), "--limit", str(options.limit)]
    running = [
        subprocess.Popen(
            [*command, "--coordinator", address, "--child", str(rank)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(PROCESSES)
    ]
    try:
        outputs = [process.communicate(timeout=options.limit + 60) for process in running]
    finally:
        for process in running:
            process.kill()
    if any(process.returncode for process in running):
        shown = "\n".join(f"[{rank}] {error}" for rank, (_, error) in enumerate(outputs))
        raise SystemExit(f"{kind}: the processes ended with {[each.returncode for each in running]}\n{shown}")
    return tuple(output.splitlines()[-1] for output, _ in outputs)


@contextmanager
def load(programs: int) -> Iterator[None]:
    """Programs that use the CPU meanwhile."""
    # They end by themselves where nobody is left to end them.
    busy = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(100000))"
    running = [subprocess.Popen([sys.executable, "-c", busy]) for _ in range(programs)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument(
        "--steps", type=int, default=200, help="steps without reading a result (default 200); 0 for none"
    )
    parser.add_argument("--jobs", type=int, default=0, help="short jobs that follow (default 0)")
    parser.add_argument("--load", type=int, default=os.cpu_count(), help="programs that use the CPU (default: cores)")
    parser.add_argument("--limit", type=int, default=300, help="seconds after which a job hangs (default 300)")
    parser.add_argument("--kind", default="within", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--coordinator", help=argparse.SUPPRESS)
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        child(options)
        return
    from importlib.metadata import version

    print(f"JAX {version('jax')}, {os.cpu_count()} cores, {options.load} programs beside the processes")
    with load(options.load):
        for kind in KINDS if options.steps else ():
            began = time.perf_counter()
            lines = job(kind, options.steps, options)
            print(f"{options.steps} steps unread, stages {kind}: {time.perf_counter() - began:.0f} s, {lines[0]}")
        found: dict[str, Counter[tuple[str, ...]]] = {kind: Counter() for kind in KINDS}
        for number in range(options.jobs):
            kind = list(KINDS)[number % len(KINDS)]
            found[kind][job(kind, STEPS_OF_A_JOB, options)] += 1
            if number % 20 == 19:
                print(f"{number + 1} jobs", flush=True)
            if len(found[kind]) > 1:
                raise SystemExit(f"{kind}: jobs differ: {found[kind]}")
    if options.jobs:
        print(f"{options.jobs} jobs: all ended, equal within each kind")
        for kind, lines in found.items():
            print(f"{kind}: {' | '.join(next(iter(lines), ()))}")


if __name__ == "__main__":
    main()
