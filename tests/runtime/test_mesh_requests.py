"""Calls that ask for the program's mesh or devices: named at their line, true of what runs, and mended as advised."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mmrewrite.codemod.registry import Registry
from mmrewrite.engine.rewrite import rewrite_project
from mmrewrite.results import Refusal, Rewrite
from tests.fixture_files import source_files

REGISTRY = Registry()
HEAD = """import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

# mm: mesh(stage=2, data=2)
own = jax.make_mesh((2, 2), ("stage", "data"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
data = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
other = jax.make_mesh((2, 1), ("devices", "one"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
by_device = jax.NamedSharding(other, P("devices"))
spec = P("data", None)
ref = jax.new_ref(jnp.zeros(()))


class Layer:
    layout = P("data", None)

    def __init__(self):
        self.w = jax.device_put(jnp.eye(4), P())

    def change(self, x):
"""
TAIL = """
    @jax.jit
    def generate(self, x):
        return jax.device_put(x, P("data"))


def model(ws, x):
    for w in ws:  # mm: stages
        x = jnp.tanh(x @ w)
    return Layer.change(None, x)


def enter():
    return jax.set_mesh(own)


def place(x):
    return jax.device_put(x, P("data"))


@jax.jit  # mm: mjit
def step(ws, x):
    return model(ws, x)


ws, x = [np.eye(4, dtype=np.float32)] * 2, np.ones((4, 4), np.float32)
"""
CALLED = "    return Layer.change(None, x)"
# The body of a method that the step calls.
REQUESTS = {
    "constraint": "return jax.lax.with_sharding_constraint(x, P('data', None))",
    "constraint by a name": "return lax.with_sharding_constraint(x, spec)",
    "constraint without axes": "return jax.lax.with_sharding_constraint(x, P())",
    "constraint over another mesh": "return lax.with_sharding_constraint(x, jax.NamedSharding(other, P('devices')))",
    "constraint over another mesh by a name": "return lax.with_sharding_constraint(x, by_device)",
    "device_put with a spec": "return jax.device_put(x * 2, P('data'))",
    "device_put to a device": "return jax.device_put(x * 2, jax.devices()[1])",
    "jit in the step": "return jax.jit(jnp.sin, out_shardings=P('data'))(x)",
    "shard_map in context": "return jax.shard_map(jnp.sin, in_specs=P('data'), out_specs=P('data'))(x)",
    "shard_map over a mesh": "return jax.shard_map(jnp.sin, mesh=own, in_specs=P('data'), out_specs=P('data'))(x)",
    "partial": "return functools.partial(jax.shard_map, in_specs=P('data'), out_specs=P('data'))(jnp.sin)(x)",
    "explicit axes": "return jax.sharding.explicit_axes(jnp.sin, in_sharding=P('data'))(x)",
    "ordered effect": "jax.debug.callback(lambda x: None, x, ordered=True)\n        return x",
    "ref": "return x + ref[...]",
}
# What a step may do.
FINE = {
    "sharding": "return jax.lax.with_sharding_constraint(x, jax.NamedSharding(own, P('data')))",
    "sharding over an axis of one": "return lax.with_sharding_constraint(x, jax.NamedSharding(other, P('one')))",
    "shard_map over the axes of a stage": "return jax.shard_map(jnp.sin, mesh=data, in_specs=spec, out_specs=spec)(x)",
    "type of a result": "return jnp.einsum('ab,bc->ac', x, x, out_sharding=P('data', None))",
    "type by a name": "return jnp.einsum('ab,bc->ac', x, x, out_sharding=spec)",
    "type by an attribute": "return jnp.einsum('ab,bc->ac', x, x, out_sharding=Layer.layout)",
    "type of a method": "return x.at[jnp.arange(4)].get(out_sharding=P('data', None))",
    "no place": "return jax.device_put(x)",
    "type of an array": "return jnp.einsum('ab,bc->ac', x, x, out_sharding=jax.typeof(x).sharding)",
    "reshard": "return jax.sharding.reshard(x, jax.typeof(x).sharding)",
    "reshard by a spec": "return jax.sharding.reshard(x, spec)",
    "unordered effect": "jax.debug.callback(lambda x: None, x)\n        return x",
}
VALUES: dict[str, Callable[[Any], Any]] = {
    "type of a result": lambda x: x @ x,
    "type by an attribute": lambda x: x @ x,
    "type by a name": lambda x: x @ x,
    "type of an array": lambda x: x @ x,
    "device_put with a spec": lambda x: x * 2,
    "device_put to a device": lambda x: x * 2,
    "jit in the step": np.sin,
    "shard_map in context": np.sin,
    "shard_map over a mesh": np.sin,
    "partial": np.sin,
    "explicit axes": np.sin,
    "shard_map over the axes of a stage": np.sin,
}


def rewrite(text: str) -> Rewrite:
    (result,) = rewrite_project(source_files({"before.py": text.encode()}), REGISTRY, load=lambda _: None)
    return result


def program(body: str) -> str:
    return f"{HEAD}        {body}\n{TAIL}"


def followed(text: str, found: Refusal) -> str:
    """The program after the advice."""
    reason = found.reason
    lines = text.splitlines()
    line = lines[found.line - 1]
    start = found.column - 1
    if axes := re.search(r"write `(axes\(.*?\))` beside the `mesh\(...\)` hint", reason):
        return text.replace("# mm: mesh(stage=2, data=2)", f"# mm: mesh(stage=2, data=2); {axes[1]}")
    if out := re.search(r"leave `(\w+=)(True)?` out", reason):
        line = re.sub(rf"(, )?{out[1]}(P\(.*?\)|\w+)", "", line)
    elif alone := re.search(r"write `([^`]*)` alone", reason):
        assert line[start:].endswith(")")
        line = line[:start] + alone[1]
    elif "write `shard_map` of `mmruntime`" in reason:
        line = re.sub(r"mesh=own, ", "", line.replace("jax.shard_map", "__import__('mmruntime').shard_map"))
        lines[lines.index(CALLED)] += "  # mm: task(stage=1)"
    elif "call its function itself" in reason:
        line = re.sub(r"jax.sharding.explicit_axes\(([\w.]+), .*?\)\)", r"\1", line)
    else:
        (value,) = re.findall(r"pass its value, `(\w+\[...\])`, as an argument", reason)
        return (
            text.replace("(ws, x)", "(ws, x, r)")
            .replace("None, x)", "None, x, r)")
            .replace("change(self, x)", "change(self, x, r)")
            .replace(f"x + {value}", "x + r")
            .replace("\nws, x =", f"\nr = {value}\nws, x =")
        )
    lines[found.line - 1] = line
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_is_named_at_its_line_and_the_advice_removes_it(name: str) -> None:
    text = program(REQUESTS[name])
    result = rewrite(text)
    (found,) = result.refusals
    assert found.line == HEAD.count("\n") + 1, found
    after = rewrite(followed(text, found))
    assert (after.refusals, after.errors, after.failure) == ((), (), None)


@pytest.mark.parametrize("name", FINE)
def test_what_a_step_may_do_is_not_named(name: str) -> None:
    result = rewrite(program(FINE[name]))
    assert (result.refusals, result.errors, result.failure) == ((), (), None)


def run(text: str) -> Any:
    made: dict[str, Any] = {}
    exec(compile(rewrite(text).result, "before.py", "exec"), made)
    arguments = (made["ws"], made["x"], made["r"]) if "r" in made else (made["ws"], made["x"])
    return made["step"](*arguments)


def expected(name: str) -> Any:
    hidden = np.tanh(np.tanh(np.ones((4, 4))))
    return VALUES.get(name, lambda x: x)(hidden)


@pytest.mark.slow
@pytest.mark.parametrize("name", REQUESTS)
def test_a_step_stops_where_it_is_named_and_runs_as_advised(name: str) -> None:
    text = program(REQUESTS[name])
    (found,) = rewrite(text).refusals
    with pytest.raises((ValueError, RuntimeError)):
        run(text)
    np.testing.assert_allclose(run(followed(text, found)), expected(name), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", FINE)
def test_what_is_not_named_runs(name: str) -> None:
    np.testing.assert_allclose(run(program(FINE[name])), expected(name), rtol=1e-6)


def test_a_mesh_that_the_program_enters_is_one_for_constraints() -> None:
    text = program(REQUESTS["constraint"]) + "with own:\n    step(ws, x)\n"
    assert not rewrite(text).refusals


def test_a_request_in_a_file_without_hints_is_named_at_the_hint() -> None:
    inside = (
        "import jax\nfrom jax.sharding import PartitionSpec as P\n\n\ndef head(x):\n    return jax.device_put(x, P())\n"
    )
    text = program("return head(x)").replace("import functools", "import functools\nfrom heads import head")
    files = source_files({"before.py": text.encode(), "heads.py": inside.encode()})
    (found,) = [
        refusal for result in rewrite_project(files, REGISTRY, load=lambda _: None) for refusal in result.refusals
    ]
    assert found.path == "before.py"
    assert text.splitlines()[found.line - 1].endswith("# mm: stages")
    assert "heads.py:6:12: `jax.device_put` has a PartitionSpec" in found.reason


@pytest.mark.parametrize(
    ("hint", "axes", "named"),
    [
        ('stages(axis="pipe")', "pipe=2, data=2", False),
        ('stages(axis="pipe")', "pipe=2, stage=2", True),
        ('stages(axis="data")', "data=2, stage=2", True),
        ("stages", "stage=2, data=2", False),
        ("task(pipe=1)", "pipe=2, data=2", False),
        ("task(pipe=1, data=0)", "pipe=2, data=2", True),
    ],
)
def test_the_mesh_of_a_task_is_without_the_axis_that_its_hint_names(hint: str, axes: str, named: bool) -> None:
    text = program(FINE["shard_map over the axes of a stage"])
    text = text.replace("# mm: stages", f"# mm: {hint}").replace("mesh(stage=2, data=2)", f"mesh({axes})")
    assert [("mesh with other axes" in found.reason) for found in rewrite(text).refusals] == [True] * named


@pytest.mark.parametrize(
    ("hint", "axes", "named"),
    [
        ('stages(axis="pipe")', "pipe=2", False),
        ('stages(axis="pipe")', "pipe=2, stage=2", True),
        ('stages(axis="stage")', "stage=2, data=1", False),
        ("task(pipe=0)", "pipe=2, data=1", False),
        ("task(data=0)", "pipe=2, data=1", True),
    ],
)
def test_ordered_effects_are_named_where_tasks_have_several_devices(hint: str, axes: str, named: bool) -> None:
    text = program(REQUESTS["ordered effect"])
    text = text.replace("# mm: stages", f"# mm: {hint}").replace("mesh(stage=2, data=2)", f"mesh({axes})")
    assert [("keeps no order" in found.reason) for found in rewrite(text).refusals] == [True] * named
