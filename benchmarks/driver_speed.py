"""What issuing a pipelined step costs, to the driver written by hand, and how long the step takes, to that driver's.

    python benchmarks/driver_speed.py [--repeats 20] [--microbatches 8 32 256] [--large]

The model is the transformer of `models.py` in four stages of two layers, trained by Adam, on one and on two devices for
each stage; the driver is in `hand_written.py`. Both get the same batch, and take turns, so that whatever else the
machine does falls on both. Figures are ratios of minima over the repeats: of the CPU time of the issuing thread, whose
goal is 0.6, and of the wall time, whose goal is 0.9. With `--large` the products are 22 and 174 GFLOP a step in eight
microbatches, with a goal of 0.95 for the wall time alone. Each row is a process of its own. The exit status is 1 when a
ratio is above its goal, or the losses differ.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from typing import Any

STAGES = 4
CPU_GOAL, WALL_GOAL, LARGE_WALL_GOAL = 0.6, 0.9, 0.95
# Width and examples of each microbatch.
TINY = (16, 8)
LARGE = ((256, 1), (512, 2))


def compare(devices: int, microbatches: int, width: int, examples: int, repeats: int) -> dict[str, float]:
    """Time both drivers here, in ms."""
    import jax
    from hand_written import HandWritten
    from models import first_state, transformer
    from steps import loss_marked, make_step
    from timing import measure

    import mmruntime as mm

    model = transformer(STAGES, 2, width, examples * microbatches, length=16 if width == TINY[0] else 72)
    states = [first_state(params) for params in model.params]
    mesh = mm.MultiMesh(axis_sizes=(STAGES, devices), axis_names=("stage", "data"))
    hand = HandWritten([mesh.slice(stage=s) for s in range(STAGES)], model, states, microbatches)
    step = mm.mjit(make_step(loss_marked(model, STAGES), microbatches), mesh=mesh)
    latest: dict[str, Any] = {"states": states}

    def ours() -> Any:
        latest["states"], latest["loss"] = step(latest["states"], model.batch)
        return latest["states"], latest["loss"]

    def by_hand() -> Any:
        latest["by hand"] = hand(model.batch)
        return latest["by hand"], hand.states

    # The first step compiles.
    for run in (ours, by_hand, ours, by_hand):
        jax.block_until_ready(run())
    found = measure({"ours": ours, "by hand": by_hand}, repeats)
    mine, other = found["ours"], found["by hand"]
    return {
        "gflop": model.flops / 1e9,
        "cpu": mine.cpu,
        "cpu ratio": mine.cpu / other.cpu,
        "wall": mine.wall,
        "wall ratio": mine.wall / other.wall,
        "difference": abs(float(latest["loss"]) / float(latest["by hand"]) - 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--microbatches", type=int, nargs="+", default=[8, 32, 256])
    parser.add_argument("--large", action="store_true", help="22 and 174 GFLOP as well")
    parser.add_argument("--row", type=int, nargs=5, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.row:
        print(json.dumps(compare(*args.row)))
        return 0
    import jax

    print(f"JAX {jax.__version__}; {STAGES} stages; ms, minima of {args.repeats}")
    titles = ("devices", "batches", "GFLOP", "CPU", "ratio", "goal", "wall", "ratio", "goal")
    print("".join(f"{title:>9}" for title in titles))
    rows = [(devices, count, *TINY) for devices in (1, 2) for count in args.microbatches]
    if args.large:
        rows += [(1, 8, *size) for size in LARGE]
    flags = "--xla_force_host_platform_device_count=8 --xla_cpu_multi_thread_eigen=false"
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    is_met = True
    for row in rows:
        repeats = args.repeats if row[2:] == TINY and row[1] < 100 else max(3, args.repeats // 4)
        command = [sys.executable, __file__, "--row", *map(str, (*row, repeats))]
        finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if finished.returncode:
            raise SystemExit(f"A row failed:\n{finished.stdout}{finished.stderr}")
        found = json.loads(finished.stdout.splitlines()[-1])
        tiny = row[2:] == TINY
        wall_goal = WALL_GOAL if tiny else LARGE_WALL_GOAL
        if found["difference"] > 1e-3:
            raise SystemExit(f"The losses differ by {found['difference']:.2g} of their value.")
        is_met = is_met and found["wall ratio"] <= wall_goal
        is_met = is_met and (not tiny or found["cpu ratio"] <= CPU_GOAL)
        print(
            f"{row[0]:9}{row[1]:9}{found['gflop']:9.3g}{found['cpu']:9.2f}{found['cpu ratio']:9.2f}"
            f"{CPU_GOAL if tiny else '':>9}{found['wall']:9.2f}{found['wall ratio']:9.2f}{wall_goal:9.2f}",
            flush=True,
        )
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
