"""Traps of XLA's CPU client, each in a process of its own: JAX's cache on disk, and many programs in flight."""

import collections
import json
import os
import subprocess
import sys
import textwrap
import threading

import jax
import jax.numpy as jnp
import pytest

import mmruntime as mm
from mmruntime import _compat
from mmruntime._execution import throttle
from tests.runtime.helpers import all_devices, batches, layer, stages, weights

TRAIN = """
    import collections, json, sys
    import jax, jax.numpy as jnp, numpy as np
    import mmruntime as mm
    from jax.sharding import PartitionSpec as P
    from mmruntime._partition.layouts import propagate as layouts

    events = collections.Counter()
    jax.monitoring.register_event_listener(lambda event, **_: events.update([event.rpartition("/")[2]]))
    if sys.argv[2:]:
        mm.init(cache=sys.argv[1])
    else:
        jax.config.update("jax_compilation_cache_dir", sys.argv[1])

    calls = []
    propagate = layouts.propagate
    layouts.propagate = lambda *args: calls.append(args) or propagate(*args)

    mesh = mm.MultiMesh(axis_sizes=(4, 2), axis_names=("stage", "data"), logical_axes=[("batch", "data")])

    def layer(w, x):
        x = mm.with_sharding_constraint(x, P("batch", None))
        return jnp.tanh(x @ w) + jnp.sin(x)

    def loss(ws, x):
        for i, w in enumerate(ws):
            x = mm.task(layer, task=mm.stage(i, len(ws), axis="stage"))(w, x)
        return (x**2).sum()

    def step(ws, x):
        value, grads = mm.microbatch(jax.value_and_grad(loss), argnum=1, count=4, schedule="1f1b")(ws, x)
        return jax.tree.map(lambda w, g: w - 0.01 * g, ws, grads), value

    rng = np.random.default_rng(0)
    ws = [rng.normal(size=(16, 16)).astype(np.float32) / 4 for _ in range(4)]
    x = rng.normal(size=(16, 16)).astype(np.float32)
    train = mm.mjit(step, mesh=mesh)
    before = dict(events)
    new, first = train(ws, x)
    programs = {key: events[key] - before.get(key, 0) for key in ("cache_hits", "compile_requests_use_cache")}
    new, second = train(new, x)
    values = [float(first), float(second), *[float(jnp.abs(w).sum()) for w in new]]
    plain = jax.jit(step)
    exact, value = plain(ws, x)
    print(json.dumps({"values": values, "plain": float(value), "propagated": len(calls), **programs}))
"""


def run_script(source, *arguments, timeout=240, flags="--xla_force_host_platform_device_count=8"):
    """The last line that a script prints, run with eight CPU devices."""
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("JAX_PERSISTENT_CACHE")}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env={**environment, "PYTHONPATH": paths, "XLA_FLAGS": flags},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()[-1]


def trained(cache, *arguments, source=TRAIN):
    """What a script that trains prints, compiled as tests are."""
    return json.loads(run_script(source, cache, *arguments, flags=os.environ["XLA_FLAGS"]))


@pytest.fixture(scope="module")
def first_start(tmp_path_factory):
    """What the first process printed, and JAX's cache on disk."""
    cache = tmp_path_factory.mktemp("cache")
    return trained(cache), cache


@pytest.mark.family(2)
def test_the_second_start_takes_its_programs_from_jaxs_cache(first_start):
    first, cache = first_start
    second, third = trained(cache), trained(cache, "init")
    assert first["values"] == second["values"] == third["values"]
    assert first["values"][0] == pytest.approx(first["plain"], rel=1e-5)
    # Stages in the middle are equal: their programs are compiled once and loaded on the devices of each.
    assert first["cache_hits"] < first["compile_requests_use_cache"]
    assert first["propagated"]
    for again in (second, third):
        assert not again["propagated"]
        # None is lowered, so that JAX is not asked for any.
        assert not again["compile_requests_use_cache"]


def test_what_only_jaxs_cache_has_is_taken_from_there(first_start):
    first, cache = first_start
    source = TRAIN.replace(
        "import mmruntime as mm\n",
        "import mmruntime as mm\n    from mmruntime._execution.program_cache import KeptPrograms\n"
        "    KeptPrograms.path_of = lambda *_: None\n",
        1,
    )
    again = trained(cache, source=source)
    assert first["values"] == again["values"]
    assert again["compile_requests_use_cache"] == first["compile_requests_use_cache"]
    assert again["cache_hits"] == again["compile_requests_use_cache"]


@pytest.mark.slow
def test_a_program_from_a_cache_that_has_lost_it_is_compiled_for_each_submesh(first_start):
    # Between the lookup by JAX and ours.
    source = TRAIN.replace(
        "import mmruntime as mm\n",
        "import mmruntime as mm\n    from jax._src import compilation_cache\n"
        "    from mmruntime._execution.program_cache import KeptPrograms\n    KeptPrograms.path_of = lambda *_: None\n"
        "    compilation_cache.get_cache_key = lambda *_, real=compilation_cache.get_cache_key: "
        "'lost' + real(*_) if sys._getframe(1).f_globals['__name__'].startswith('mmruntime.') else real(*_)\n",
        1,
    )
    second = trained(first_start[1], source=source)
    assert second["values"][0] == pytest.approx(second["plain"], rel=1e-5)


# A program on eight devices and one on two of them, or on the same two with pieces sent between them, issued far ahead.
AHEAD = """
    import sys
    import jax, jax.numpy as jnp, numpy as np
    import mmruntime as mm
    from jax.sharding import PartitionSpec as P

    mesh = mm.MultiMesh(axis_sizes=(4, 2), axis_names=("stage", "data"))
    whole = mm.Task(name="whole", mesh_slice={}, logical_axes=[("batch", ("stage", "data"))])
    part = mm.Task(name="part", mesh_slice={"stage": 0}, logical_axes=[("batch", "data")])

    def total(x):
        return mm.with_sharding_constraint(x, P("batch", None)).sum(0)

    def centered(x):
        x = mm.with_sharding_constraint(x, P("batch", None))
        return mm.with_sharding_constraint(x - x.mean(0, keepdims=True), P("batch"))

    def apart(x, y):
        return mm.task(total, task=whole)(x), mm.task(total, task=part)(y)

    def chained(x, y):
        x = mm.task(centered, task=part)(mm.task(centered, task=whole)(x))
        y = mm.task(centered, task=whole)(mm.task(centered, task=part)(y))
        return x, y

    step = mm.mjit({"apart": apart, "chained": chained, "donated": chained}[sys.argv[1]], mesh=mesh,
                   donate_argnums=(0, 1) if sys.argv[1] == "donated" else ())
    x = np.ones((16, 8), np.float32)
    step.plan(x, x)
    x, y = (jax.device_put(x, like.sharding) for like in step.abstract_args())
    results = []
    for _ in range(int(sys.argv[2])):
        if sys.argv[1] == "apart":
            results.append(step(x, y))
        else:
            x, y = step(x, y)
    jax.block_until_ready((results, x, y))
    print("done")
"""


@pytest.mark.family
@pytest.mark.parametrize("how", ["apart", "chained", "donated"])
def test_programs_on_overlapping_submeshes_do_not_wait_for_each_other(how):
    assert run_script(AHEAD, how, 400, timeout=120) == "done"


class Issued:
    """An array that counts waits, and how many were issued when it was waited for."""

    def __init__(self, log, number):
        self.log, self.number, self.deleted = log, number, False

    def is_deleted(self):
        return self.deleted

    def block_until_ready(self):
        assert not self.deleted
        self.log.append(self.number)


def test_at_most_eight_programs_of_a_submesh_are_in_flight():
    limit, waited, numbers, arrays = throttle.Throttle(throttle.LIMIT), [], iter(range(100)), []
    limit.needed = True

    def program():
        arrays.append(Issued(waited, next(numbers)))
        return [None, arrays[-1]]

    run = limit.limited(program, 1)
    for number in range(50):
        run()
        assert number - max(waited, default=-1) <= throttle.LIMIT
    # A donated result cannot be waited for, so the latest one is.
    for number in range(50, 70):
        for array in arrays:
            array.deleted = True
        run()
        assert number < 54 or number - max(waited) < throttle.LIMIT // 2


def test_programs_of_one_device_wait_for_what_was_issued_long_ago():
    """Also where every third one has only a result that a later one overwrites."""
    limit, waited, numbers, arrays = throttle.Throttle(24, windows=4, delay=2), [], iter(range(1000)), []
    limit.needed = True

    def program():
        arrays.append(Issued(waited, next(numbers)))
        return [arrays[-1]]

    runs = [limit.limited(program, 0, lasting=lasting) for lasting in (True, True, False)]
    for number in range(200):
        if number > 5 and (number - 5) % 3 == 2:
            arrays[number - 5].deleted = True
        runs[number % 3]()
        assert number - max(waited, default=-1) <= 32
        # Those that were issued just now would be waited for longest.
        assert number - max(waited, default=-32) >= 18
    assert len(waited) > 20
    # None at all that would last: then later ones are waited for, and never more are in flight.
    for number in range(200, 300):
        for array in arrays[:-1]:
            array.deleted = True
        runs[2]()
        assert number - max(waited) <= 32


def test_the_throttle_waits_for_results_that_nobody_donates(monkeypatch):
    monkeypatch.setattr(_compat, "deadlocks_far_ahead", lambda platform: platform == "cpu")

    def step(ws, x):
        for index, w in enumerate(ws):
            x = mm.task(layer, task=mm.stage(index, 2))(w, x)
        return x

    def limited(mesh):
        compiled = mm.mjit(step, mesh=mesh)
        x = batches(1)[0]["x"]
        compiled(weights(2), x)
        plan = compiled.latest_plan
        return throttle.throttled(plan.program, plan.compiled, plan.shardings)

    assert len(limited(stages(2, data=2))) == 2
    # Programs of one device have no collectives.
    assert not limited(stages(2))


def test_programs_wait_from_the_first_one_with_collectives_on(monkeypatch):
    """Those that have none cannot wait for each other, whatever their number of devices."""
    monkeypatch.setattr(_compat, "deadlocks_far_ahead", lambda platform: platform == "cpu")
    monkeypatch.setattr(throttle, "_throttles", {})
    monkeypatch.setattr(throttle, "_waiting", set())
    (x,), ws = [batch["x"] for batch in batches(1)], weights(2)

    def compiled(layer):
        def step(ws, x):
            for index, w in enumerate(ws):
                x = mm.task(layer, task=mm.stage(index, 2))(w, x)
            return x

        step = mm.mjit(step, mesh=mesh)
        step(ws, x)
        return step.latest_plan

    def centered(w, x):
        # The mean over examples is a sum over devices.
        x = mm.with_sharding_constraint(jnp.tanh(x @ w), jax.sharding.PartitionSpec("data", None))
        return x - x.mean(0, keepdims=True)

    mesh = stages(2, data=2)
    plan = compiled(layer)
    devices = [tuple(mesh.slice(stage=number).devices.flat) for number in range(2)]
    found = [throttle.throttle_of(each) for each in devices]
    assert [each.needed for each in found] == [False, False]
    waited = []
    runs = throttle.throttled(plan.program, plan.compiled, plan.shardings)
    monkeypatch.setattr(found[0], "_window", 1)
    found[0]._markers = collections.deque([Issued(waited, 0)])
    (first, *_), arguments = runs, [ws[0], x]
    run = found[0].limited(lambda *_: [Issued(waited, 1)], 0)
    run(*arguments)
    assert first.spec.submesh == 0 and not waited
    compiled(centered)
    assert [each.needed for each in found] == [True, True]
    run(*arguments)
    assert waited == [0]
    # Also on a list that comes later and shares one of their devices, and not where none does.
    assert throttle.throttle_of((devices[0][1], *jax.devices()[6:])).needed
    assert not throttle.throttle_of(tuple(jax.devices()[6:])).needed
    mm.mjit(lambda x: 2 * x, mesh=all_devices())(x)
    assert throttle.throttle_of(tuple(jax.devices()[6:])).needed


def test_threads_that_compile_at_once_miss_nothing_of_each_other(monkeypatch):
    """While one makes the throttle of a list of devices, another one notes that programs on one of them may wait."""
    other = threading.Thread(target=throttle.need, args=[(0,)])

    class Asked(set):
        def isdisjoint(self, devices):
            found = super().isdisjoint(devices)
            if other.ident is None:
                other.start()
                other.join(0.2)
            return found

    monkeypatch.setattr(throttle, "_throttles", {})
    monkeypatch.setattr(throttle, "_waiting", Asked())
    made = throttle.throttle_of((0, 1))
    other.join()
    assert made.needed


def test_what_waits_inside_of_a_program_is_found():
    mesh = jax.make_mesh((2,), ("data",))
    cut, whole = [jax.NamedSharding(mesh, jax.P(*names)) for names in (["data"], [])]
    sizes = jax.ShapeDtypeStruct((4, 4), jnp.float32)

    def waits(function, ins, outs):
        return _compat.may_wait(jax.jit(function, in_shardings=ins, out_shardings=outs).lower(sizes).compile())

    def called(x):
        return jax.pure_callback(lambda x: x, sizes, x)

    assert not waits(lambda x: jnp.sin(x) @ x, whole, whole)
    assert not waits(lambda x: jnp.sin(x).sum(1), cut, cut)
    assert waits(jnp.sin, cut, whole)
    assert waits(lambda x: x.sum(0), cut, whole)
    assert waits(called, whole, whole)


def test_layouts_that_were_damaged_on_disk_are_found_again(first_start):
    first, cache = first_start
    for number, path in enumerate(sorted((cache / "mmruntime").glob("*.json"))):
        path.write_text(["", "[]", "[[], []]", '[[["elsewhere"]], []]', "{}"][number % 5], encoding="utf-8")
    again = trained(cache)
    assert (again["values"], again["propagated"]) == (first["values"], first["propagated"])


def test_a_context_that_lowerings_share_keeps_its_locks():
    """Without them, a module that is compiled while the next one is lowered ends the process now and then."""

    class Context:
        locked = True

        def enable_multithreading(self, enabled):
            self.locked = enabled

    first, second = [jax.jit(function).lower(1.0).compiler_ir().context for function in (jnp.sin, jnp.cos)]
    context = Context()
    _compat.leave_threads(context)
    assert context.locked or first is not second
