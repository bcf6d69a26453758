"""What a trace says about layers, held against the report about the compiled plan."""

import importlib
import sys

import pytest

from mmruntime._commands.entry_point import BadEntryPoint, FunctionName
from mmruntime._commands.suggest import costs

_PROGRAM = """
import functools
import jax, jax.numpy as jnp
import mmruntime as mm

mesh = mm.MultiMesh(axis_sizes=({stages},), axis_names=("stage",))
LAYERS = {layers}

def layer(p, x):
    return x + jnp.tanh(x @ p["up"]) @ p["down"]

def loss_fn(params, x, y):
    for i, p in enumerate(params["layers"]):
        x = mm.task(layer, task=mm.stage(i, LAYERS, chunks={chunks}))(p, x)
    return jnp.mean((x @ params["head"] - y) ** 2)

@functools.partial(mm.mjit, mesh=mesh, donate_argnums=(0, 1))
def step(params, momentum, x, y):
    loss, grads = mm.microbatch(
        jax.value_and_grad(loss_fn), count=4, argnum=(1, 2), schedule="1f1b", reduce="exact"
    )(params, x, y)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
    return jax.tree.map(lambda p, m: p - 0.1 * m, params, momentum), momentum, loss

def example():
    s = jax.ShapeDtypeStruct
    layers = [{{"up": s((64, {width}), jnp.float32), "down": s(({width}, 64), jnp.float32)}} for _ in range(LAYERS)]
    params = {{"layers": layers, "head": s((64, 32), jnp.float32)}}
    return params, params, s((64, 64), jnp.float32), s((64, 32), jnp.float32)
"""


def _module(tmp_path, monkeypatch, name, **sizes):
    (tmp_path / f"{name}.py").write_text(_PROGRAM.format(**{"chunks": 1, **sizes}))
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop(name, None)
    return importlib.import_module(name)


def _costs(name):
    return costs(FunctionName("--entry", f"{name}:step"), FunctionName("--args", f"{name}:example"))


@pytest.mark.parametrize(("layers", "width"), [(8, 128), (6, 256)])
def test_costs_are_those_of_the_compiled_plan(tmp_path, monkeypatch, layers, width):
    name = f"costs_of_{layers}"
    module = _module(tmp_path, monkeypatch, name, layers=layers, width=width, stages=2)
    document = _costs(name)
    (trace,) = [each for each in document["traces"] if each["count"] == 4]
    report = module.step.plan(*module.example())
    half = layers // 2
    held = {row.submeshes[0]: row.held for row in report.memory}
    for where, part in enumerate((trace["layers"][:half], trace["layers"][half:])):
        assert held[where].parameters == pytest.approx(sum(each["parameters"] for each in part), rel=0.05)
        assert held[where].optimizer_state == pytest.approx(sum(each["optimizer_state"] for each in part), rel=0.05)
        assert held[where].gradients == pytest.approx(sum(each["gradients"] for each in part), rel=0.05)
        flops = sum(each[kind]["flops"] for each in part for kind in ("forward", "inputs", "weights"))
        made = sum(row.flops for row in report.programs if row.submesh == where and row.kind != "once")
        assert flops == pytest.approx(made, rel=0.03)
    # The first stage has two microbatches in flight.
    kept = sum(each["kept"] for each in trace["layers"][:half])
    assert report.submeshes[0].activation_bytes - held[0].received == pytest.approx(2 * kept, rel=0.05)
    edge = trace["layers"][half - 1]["sent"][half]
    assert {row.size for row in report.transfers if row.source == 0} == {edge}


def test_the_rounds_of_today_do_not_matter(tmp_path, monkeypatch):
    _module(tmp_path, monkeypatch, "costs_in_rounds", layers=8, width=128, stages=2, chunks=2)
    document = _costs("costs_in_rounds")
    assert document["today"] == {"axes": {"stage": 2}, "count": 4, "rounds": 2, "placement": None}
    assert [len(trace["layers"]) for trace in document["traces"]] == [8, 8]


def test_more_layers_than_devices_say_what_to_write(tmp_path, monkeypatch):
    _module(tmp_path, monkeypatch, "costs_of_many", layers=9, width=8, stages=2)
    with pytest.raises(BadEntryPoint, match="9 layers need as many virtual devices"):
        _costs("costs_of_many")


def test_products_are_those_of_accelerators(tmp_path, monkeypatch):
    text = _PROGRAM.replace("jnp.float32", "jnp.bfloat16").format(layers=2, width=16, stages=1, chunks=1)
    (tmp_path / "costs_of_short_floats.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    for platform, types in (("gpu", {"bfloat16"}), ("cpu", {"bfloat16", "float32"})):
        names = (
            FunctionName(name, f"costs_of_short_floats:{it}")
            for name, it in (("--entry", "step"), ("--args", "example"))
        )
        (trace,) = costs(*names, platform=platform, once=True)["traces"]
        parts = [layer[part]["products"] for layer in trace["layers"] for part in ("forward", "inputs", "weights")]
        assert {kind for products in parts for kind in products} == types
