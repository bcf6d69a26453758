"""What a second start costs with JAX's persistent compilation cache, as a share of the first.

    python benchmarks/second_start.py [--schedule NAME ...] [--goal 0.2] [--repeats 1] [--by-user]

The program is `examples/gpt`, rewritten, on eight virtual CPU devices, under every named schedule. Each start is a
process of its own, the first with an empty cache; `mm.init(cache=...)` sets the cache up, or, with `--by-user`,
JAX's own settings do. A start is from the first line of the program, the imports of JAX and Flax among them, to the
result of its first step: the data, the initial parameters and the step. The library is compiled to bytecode before,
as pip does when it installs. Figures are CPU time of the process, in which
all threads count. `the step` is the call of the compiled step alone; `XLA` is what of the second start is spent in
looking up and loading executables, but for what XLA of JAX 0.10 does in threads of its own. `not XLA` is the rest of
the step, its tracing, placing, scheduling and lowering, as a share of the first start. `same` says whether loss and
parameters of both starts are the same to the bit. The exit status is 1 when a share is above the goal, something was
compiled again, or results differ.
"""

from __future__ import annotations

import argparse
import compileall
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "gpt"


def start(folder: str, cache: str, *, by_user: bool) -> dict[str, Any]:
    """Start the program here, up to the result of its first step."""
    import jax

    import mmruntime as mm
    from mmruntime import _compat

    if by_user:
        jax.config.update("jax_compilation_cache_dir", cache)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    else:
        mm.init(cache=cache)
    seen = {"cache_hits": 0, "compile_requests_use_cache": 0}

    def count(event: str, **_: Any) -> None:
        name = event.rpartition("/")[2]
        if name in seen:
            seen[name] += 1

    jax.monitoring.register_event_listener(count)
    in_xla: list[float] = []
    for function in ("compile_lowered", "unpack", "load_elsewhere"):
        setattr(_compat, function, _timed(getattr(_compat, function), in_xla))
    (script,) = Path(folder).rglob("train.py")
    sys.path.insert(0, str(script.parent))
    import train

    config = train.TrainConfig()
    corpus = train.load_corpus(config.text)
    batch = next(train.windows(corpus.train, config.batch_size, config.context, config.seed))
    state = train.create_state(config, corpus.vocab_size)
    started = time.process_time()
    state, metrics = jax.block_until_ready(train.train_step(state, batch, jax.random.key(1)))
    step = time.process_time() - started
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves((state.params, metrics)):
        digest.update(jax.device_get(leaf).tobytes())
    return {
        "start": time.process_time(),
        "step": step,
        "xla": sum(in_xla),
        "compiled": seen["compile_requests_use_cache"] - seen["cache_hits"],
        "digest": digest.hexdigest(),
    }


def _timed(function: Any, spent: list[float]) -> Any:
    def run(*args: Any) -> Any:
        started = time.thread_time()
        try:
            return function(*args)
        finally:
            spent.append(time.thread_time() - started)

    return run


def _stages(schedule: str) -> str:
    """The hint that deals layers out as a schedule wants them."""
    from mmrewrite.directives.schedule_names import IN_TURNS, OF_THE_V

    return 'stages(placement="v")' if schedule in OF_THE_V else "stages(chunks=2)" if schedule in IN_TURNS else "stages"


def main() -> int:
    from mmruntime import schedules

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--schedule", action="append", help="a schedule; every named one if left out")
    parser.add_argument("--goal", type=float, default=0.2, help="the largest share of the first start (default 0.2)")
    parser.add_argument("--repeats", type=int, default=1, help="second starts, of which the median counts")
    parser.add_argument("--by-user", action="store_true", help="set the cache up by JAX's settings")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(start(*args.child, by_user=args.by_user)))
        return 0
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    for name in ("JAX_COMPILATION_CACHE_DIR", "PYTHONDONTWRITEBYTECODE"):
        environment.pop(name, None)

    def child(folder: str, cache: str) -> dict[str, Any]:
        command = [sys.executable, __file__, "--child", folder, cache, *(["--by-user"] if args.by_user else [])]
        finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if finished.returncode:
            raise SystemExit(f"A start failed:\n{finished.stdout}{finished.stderr}")
        found: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
        return found

    import jax

    import mmruntime

    compileall.compile_dir(Path(mmruntime.__file__).parent, quiet=1)
    print(f"JAX {jax.__version__}; seconds of CPU")
    titles = ("first", "second", "share", "goal", "1st step", "2nd step", "share", "XLA", "not XLA", "again", "same")
    print(f"{'':18}" + "".join(f"{title:>9}" for title in titles))
    is_met = True
    for name in args.schedule or schedules.names():
        with tempfile.TemporaryDirectory() as folder:
            source, cache = Path(folder) / "source", Path(folder) / "cache"
            source.mkdir()
            for file in EXAMPLE.iterdir():
                if file.is_file():
                    text = file.read_bytes().replace(b'schedule="1f1b"', f'schedule="{name}"'.encode())
                    (source / file.name).write_bytes(text.replace(b"# mm: stages", f"# mm: {_stages(name)}".encode()))
            built = str(Path(folder) / "built")
            command = [sys.executable, "-m", "mmrewrite", "build", str(source), "--out", built]
            finished = subprocess.run(command, capture_output=True, text=True, check=False)
            if finished.returncode:
                raise SystemExit(f"The example with {name} cannot be built:\n{finished.stdout}{finished.stderr}")
            first = child(built, str(cache))
            again = [child(built, str(cache)) for _ in range(args.repeats)]
        second = {key: statistics.median(each[key] for each in again) for key in ("start", "step", "xla", "compiled")}
        same = all(each["digest"] == first["digest"] for each in again)
        share = second["start"] / first["start"]
        is_met = is_met and share <= args.goal and not second["compiled"] and same
        print(
            f"{name:18}{first['start']:9.2f}{second['start']:9.2f}{share:9.2f}{args.goal:9.2f}{first['step']:9.2f}"
            f"{second['step']:9.2f}{second['step'] / first['step']:9.2f}{second['xla']:9.2f}"
            f"{(second['step'] - second['xla']) / first['start']:9.1%}{second['compiled']:9.0f}"
            f"{'yes' if same else 'no':>9}",
            flush=True,
        )
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
