"""Whether modernized programs do what they did: old code on an old JAX against rewritten code on today's.

    python validation/modernize_oracle.py --old PYTHON [--mid PYTHON] [--new PYTHON ...] [--record] [CASE ...]
    python validation/modernize_oracle.py --project DIR [--project DIR ...] [--imports] [--new PYTHON ...]
    python validation/modernize_oracle.py --project DIR --driver FILE --old PYTHON [--mid PYTHON] [--new PYTHON ...]

A CASE is a folder with `before.py`, or with a folder `before` that has a `main.py`: a program that ends in `out =
...`. By default the cases are those fixtures that have an `old.json`. Each program runs as it is in a process of its
own under the old JAX, and, rewritten by this checkout's `mmrewrite modernize`, under every `--new` one (default: this
Python), with JAX's deprecation warnings as errors, on eight virtual CPU devices. Compared are the structure of `out`,
and for every array in it the values (relative 1e-5), the dtype, the shape, and which part of it lies on which device.
The exit status is 1 when anything differs.

`--record` writes what the old JAX gave to `old.json` in each case's folder; `tests/runtime/test_modernize_old.py`
compares with that where no old JAX is installed.

`--project` alone runs nothing: it rewrites a copy of any project and holds the text to what is promised about it, see
`modernize_project.py` beside this file. With `--driver` it runs what the driver calls of the project, before and after,
and compares as above, see `modernize_driver.py`; drivers for public projects are in `modernize_projects`.

The environments, with Python 3.10:

    old: pip install jax==0.4.13 jaxlib==0.4.13 numpy==1.24.4 flax==0.6.11 optax==0.1.5
    mid: pip install jax==0.6.2 jaxlib==0.6.2

jaxlib 0.4.13 is the oldest that still installs. `restore` puts back the names that it had lost already. A `case.toml`
with `jax = "mid"` asks for the other one: for programs that 0.4.13 is too old for.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RTOL, ATOL = 1e-5, 1e-6
LARGEST = 4096
LIBRARIES = ("chex", "flax", "haiku", "optax", "orbax", "transformers")

ENVIRONMENT = {
    "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
    "JAX_PLATFORMS": "cpu",
    # The default since JAX 0.5, without which the old random numbers differ.
    "JAX_THREEFRY_PARTITIONABLE": "1",
}


# What runs in the old Python as well: nothing here may need more than Python 3.10.


def restore():
    """Put names back into JAX 0.4.13 that older ones had, as they were."""
    import jax
    from jax.experimental import maps, pjit
    from jax.interpreters import pxla
    from jax.sharding import Mesh, PartitionSpec

    if jax.__version_info__ > (0, 4, 13):
        return
    jax.experimental.PartitionSpec = PartitionSpec
    pjit.PartitionSpec = PartitionSpec
    pjit.with_sharding_constraint = lambda x, axis_resources: jax.lax.with_sharding_constraint(x, axis_resources)
    maps.Mesh = maps.mesh = pxla.Mesh = Mesh
    pxla.PartitionSpec = PartitionSpec
    pxla.thread_resources = maps.thread_resources
    jax.tree_multimap = jax.tree_util.tree_multimap = jax.tree_map
    pjit.pjit = _replicating(pjit.pjit)


def heed_hints():
    """Have an old Flax constrain values by its sharding hints on CPUs too, which stand for other devices here.

    Up to Flax 0.10 it left them out there, and on CPUs only.
    """
    try:
        from flax.linen import spmd
    except ImportError:
        return
    if hasattr(spmd, "is_cpu_platform"):
        spmd.is_cpu_platform = lambda mesh: False
    elif hasattr(spmd, "_global_mesh_defined"):
        from jax.experimental import pjit
        from jax.sharding import NamedSharding

        def constrain(x, axis_resources, mesh=None):
            if mesh is not None and axis_resources is not None:
                axis_resources = NamedSharding(mesh, axis_resources)
            elif mesh is None and not spmd._global_mesh_defined():
                return x
            return pjit.with_sharding_constraint(x, axis_resources)

        spmd._with_sharding_constraint = constrain


def _replicating(pjit):
    """`pjit` as it was before 0.4.4: four arguments by position, and `lower` with an argument of its own.

    A whole `in_axis_resources=None` means replicated: 0.4.13 alone drops it.
    """
    positions = ("in_shardings", "out_shardings", "static_argnums", "donate_argnums")

    def replicating(fun, *args, **kwargs):
        kwargs.update(zip(positions, args))  # noqa: B905
        for side in ("in", "out"):
            if side + "_axis_resources" in kwargs:
                kwargs[side + "_shardings"] = kwargs.pop(side + "_axis_resources")
        compiled = pjit(fun, **kwargs)

        @functools.wraps(fun)
        def call(*args, **kwargs):
            return compiled(*args, **kwargs)

        call.lower = lambda *args, _global_avals=None, **kwargs: compiled.lower(*args, **kwargs)
        return call

    return replicating


def describe(out, *, sampled=False):
    """A value as JSON: its structure, and for arrays dtype, shape, values and the part on each device.

    Of an array with more than `LARGEST` values, which is an error otherwise, `sampled` takes some and the sum of all.
    """
    import jax
    import numpy as np

    if isinstance(out, dict) or hasattr(out, "items"):
        return {
            "dict": {
                str(key): describe(value, sampled=sampled)
                for key, value in sorted(out.items(), key=lambda item: str(item[0]))
            }
        }
    if isinstance(out, (list, tuple)):
        kind = "namedtuple" if hasattr(out, "_fields") else type(out).__name__
        return {kind: [describe(value, sampled=sampled) for value in out]}
    if out is None or isinstance(out, (bool, int, str)):
        return {"is": out}
    if isinstance(out, (float, np.ndarray, np.generic)):
        return _array(np.asarray(out), sampled)
    if isinstance(out, jax.Array):
        parts = {
            str(device.id): [_bounds(part, size) for part, size in zip(index, out.shape)]  # noqa: B905
            for device, index in out.sharding.devices_indices_map(out.shape).items()
        }
        if jax.dtypes.issubdtype(out.dtype, getattr(jax.dtypes, "prng_key", np.void)):
            out = jax.random.key_data(out)
        return {
            **_array(np.asarray(out), sampled),
            "devices": dict(sorted(parts.items(), key=lambda item: int(item[0]))),
        }
    raise TypeError(
        f"`out` holds a {type(out).__name__}, which cannot be recorded; turn it into arrays, numbers or strings."
    )


def _bounds(part, size):
    return [part, part + 1] if isinstance(part, int) else list(part.indices(size)[:2])


def _array(array, sampled):
    if array.size > LARGEST and not sampled:
        raise ValueError(f"`out` holds an array of shape {array.shape}; at most {LARGEST} values can be recorded.")
    kind, shape = str(array.dtype), list(array.shape)
    array = array.ravel()
    if array.dtype.kind not in "biu":
        array = array.astype("complex128" if array.dtype.kind == "c" else "float64")
    if array.size > LARGEST:
        array = _sample(array)
    if array.dtype.kind not in "biu":
        values = [float(f"{part:.8g}") for value in array for part in _parts(value)]
    else:
        values = array.tolist()
    return {"dtype": kind, "shape": shape, "values": values}


def _sample(array):
    """About `LARGEST` of the values, of every column of whatever shape the array has, and the sum of all sizes."""
    import numpy as np

    step = -(-array.size // LARGEST)
    while math.gcd(step, array.size) > 1:
        step += 1
    return np.append(array[::step], np.abs(array).sum())


def _parts(value):
    return (value.real, value.imag) if isinstance(value, complex) else (value,)


def run_program(path, *, project=None):
    """`out` of the program at `path`, described; of a driver, whose project is in the folder `project`."""
    names = {"__name__": "program", "__file__": path}
    sys.path.insert(0, project or os.path.dirname(os.path.abspath(path)))
    with open(path, encoding="utf-8") as file:
        source = file.read()
    if project is not None or "flax.linen" in source:
        heed_hints()
    exec(compile(source, path, "exec", dont_inherit=True), names)
    return describe(names["out"], sampled=project is not None)


def child(path, strict, project=None):
    """Run one program and print what it gives."""
    import warnings

    import jax

    if strict:
        for module in (r"jax", r"jaxlib"):
            warnings.filterwarnings("error", category=DeprecationWarning, message=rf".*{module}.*")
        warnings.filterwarnings("error", category=DeprecationWarning, module="__main__|program")
        warnings.filterwarnings("error", category=FutureWarning)
        # What other libraries call is not what was rewritten.
        warnings.filterwarnings("ignore", category=DeprecationWarning, module=rf"({'|'.join(LIBRARIES)})(\.|$)")
    else:
        warnings.simplefilter("ignore")
        if hasattr(jax.experimental, "maps") or jax.__version_info__ <= (0, 4, 30):
            restore()
    print(json.dumps({"jax": jax.__version__, "out": run_program(path, project=project)}))


# The comparison


def differences(old, new, where="out"):
    """What differs between two descriptions, one sentence for each place."""
    if old.keys() != new.keys():
        yield f"{where}: {_kind(old)} became {_kind(new)}"
        return
    if "values" in old:
        yield from _array_differences(old, new, where)
        return
    ((kind, one),), ((_, other),) = old.items(), new.items()
    if kind == "is":
        if one != other or type(one) is not type(other):
            yield f"{where}: {one!r} became {other!r}"
    elif len(one) != len(other) or (kind == "dict" and one.keys() != other.keys()):
        yield f"{where}: a {kind} of other entries"
    else:
        pairs = one.items() if kind == "dict" else enumerate(one)
        for key, value in pairs:
            yield from differences(value, other[key], f"{where}[{key!r}]")


def _array_differences(old, new, where):
    for what in ("dtype", "shape"):
        if old[what] != new[what]:
            yield f"{where}: {what} {old[what]} became {new[what]}"
            return
    for index, (one, other) in enumerate(zip(old["values"], new["values"], strict=True)):
        same = one == other or (one != one and other != other) or abs(one - other) <= ATOL + RTOL * abs(one)
        if not same or (isinstance(one, int) and one != other):
            yield f"{where}: value {index} is {other:.7g} and was {one:.7g}"
            break
    if old.get("devices") != new.get("devices"):
        yield f"{where}: lies {_shown(new.get('devices'))} and lay {_shown(old.get('devices'))}"


def _kind(described):
    return "an array" if "values" in described else next(iter(described))


def _shown(parts):
    if parts is None:
        return "on the host"
    found = sorted(set(map(str, parts.values())))
    return f"on devices {','.join(parts)} as {' '.join(found[:3])}{' ...' if len(found) > 3 else ''}"


def rewrite(case, folder):
    """The case's program, rewritten by this checkout into `folder`; the path to run, and what was said about it."""
    source = case / "before"
    if source.is_dir():
        target = folder / "program"
        for path in source.rglob("*.py"):
            copy = target / path.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
        main = target / "main.py"
    else:
        main = target = folder / "program.py"
        main.write_bytes((case / "before.py").read_bytes())
    path = os.pathsep.join(str(ROOT / part) for part in (".", "codemods"))
    done = subprocess.run(
        [sys.executable, "-m", "mmrewrite", "modernize", *selection(case), str(target)],
        env={**os.environ, "PYTHONPATH": path},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 2:
        raise SystemExit(f"{case}: modernize failed:\n{done.stderr}")
    return main


def run_in(python, path, *, strict, project=None, verbose=False):
    """What a program gives under another Python, or the last line of its error; with `verbose`, what it wrote is shown.

    With `project` it is a driver, and runs in that folder.
    """
    runtime = [str(ROOT / "runtime")] if strict else []
    arguments = ["strict" if strict else "old", str(path), *([str(project)] if project else [])]
    done = subprocess.run(
        [python, str(Path(__file__).resolve()), "--child", *arguments],
        env={**os.environ, **ENVIRONMENT, "PYTHONPATH": os.pathsep.join(runtime)},
        cwd=project or Path(path).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    if verbose:
        print(done.stdout if done.returncode else "", done.stderr, sep="", file=sys.stderr)
    if done.returncode:
        return None, (done.stderr.strip().splitlines() or ["no output"])[-1]
    return json.loads(done.stdout.splitlines()[-1]), None


def cases(given):
    """The folders to look at."""
    if given:
        return [Path(case).resolve() for case in given]
    return sorted(path.parent for path in (ROOT / "fixtures").rglob("old.json"))


def settings_of(case):
    """What a case's `case.toml` says."""
    import tomllib

    settings = case / "case.toml"
    return tomllib.loads(settings.read_text(encoding="utf-8")) if settings.exists() else {}


def wanted_jax(case):
    """`old` or `mid`: which environment a case is recorded with."""
    return settings_of(case).get("jax", "old")


def selection(case):
    """The options by which a case asks for codemods by name."""
    return [word for name in settings_of(case).get("select", ()) for word in ("--select", name)]


def show(value):
    """A description on one line of the file for each array, so that a change to one is one changed line."""
    text = json.dumps(value, indent=1)
    if "values" in value:
        text = json.dumps(value)
    else:
        ((kind, inner),) = value.items()
        if kind == "dict":
            rows = [f"{json.dumps(key)}: {show(item)}" for key, item in inner.items()]
            text = f'{{"dict": {{{", ".join(rows)}}}}}'
        elif isinstance(inner, list):
            text = f'{{"{kind}": [{", ".join(show(item) for item in inner)}]}}'
        else:
            text = json.dumps(value)
    return text


def main():
    """Run the cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--old", help="Python with JAX 0.4.13")
    parser.add_argument("--mid", help="Python with JAX 0.6.2")
    parser.add_argument("--new", action="append", help="Python with a JAX of today; may be given several times")
    parser.add_argument("--record", action="store_true", help="write old.json into each case's folder")
    parser.add_argument("--project", action="append", default=[], help="a folder whose text is checked instead")
    parser.add_argument("--imports", action="store_true", help="import what changed in the projects as well")
    parser.add_argument("--driver", type=Path, help="what to run of the one project given, before and after")
    parser.add_argument("--keep", type=Path, help="an empty folder for the copies that --driver makes")
    parser.add_argument("--verbose", action="store_true", help="show what --driver's runs write to standard error")
    parser.add_argument("case", nargs="*")
    options = parser.parse_args()
    if options.driver:
        import modernize_driver

        if len(options.project) != 1:
            parser.error("--driver needs one --project, the checkout that it drives.")
        sys.exit(modernize_driver.main(options))
    if options.project:
        import modernize_project

        sys.exit(
            1
            if modernize_project.main(options.project, options.new or [sys.executable], imports=options.imports)
            else 0
        )
    found = cases(options.case)
    width = max((len(f"{case.parent.name}/{case.name}") for case in found), default=0)
    bad = 0
    for case in found:
        kind = wanted_jax(case)
        python = {"old": options.old, "mid": options.mid}[kind]
        name = f"{case.parent.name}/{case.name}"
        if python is None:
            print(f"{name:<{width}}  needs --{kind}")
            continue
        before = case / "before" / "main.py" if (case / "before").is_dir() else case / "before.py"
        old, error = run_in(python, before, strict=False)
        if old is None:
            print(f"{name:<{width}}  does not run as it was: {error}")
            bad += 1
            continue
        if options.record:
            line = f'{{"jax": "{old["jax"]}", "out": {show(old["out"])}}}\n'
            (case / "old.json").write_text(line, encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder:
            path = rewrite(case, Path(folder))
            columns = []
            for new_python in options.new or [sys.executable]:
                new, error = run_in(new_python, path, strict=True)
                found_differences = [error] if new is None else list(differences(old["out"], new["out"]))
                bad += bool(found_differences)
                version = new["jax"] if new else new_python
                columns.append(f"{version}: {'; '.join(found_differences[:3]) or 'same'}")
        print(f"{name:<{width}}  {old['jax']} -> {', '.join(columns)}", flush=True)
    print(f"{len(found)} cases, {bad} differences")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[3], sys.argv[2] == "strict", *sys.argv[4:])
    else:
        main()
