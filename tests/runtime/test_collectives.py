"""The collectives of compiled programs: how many, how large, from which line, and who asked for them."""

import inspect

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import mmruntime as mm
from mmruntime._inspect.collectives import collectives, made_equations
from tests.runtime.helpers import on


@pytest.fixture(scope="module")
def mesh():
    return Mesh(np.array(jax.devices()[:2]), ("model",))


def compiled(mesh, function, inputs, output, *shapes):
    shardings = [NamedSharding(mesh, spec) for spec in inputs]
    step = jax.jit(function, in_shardings=shardings, out_shardings=NamedSharding(mesh, output))
    traced = step.trace(*(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes))
    return collectives(traced.lower().compile().as_text(), made_equations(traced.jaxpr.eqns), 2)


def product(x, w):
    return jnp.dot(x, w)


def test_a_sum_over_a_sharded_dimension_is_asked_for(mesh):
    (found,) = compiled(mesh, product, (P(None, "model"), P("model")), P(), (4, 8), (8, 2))
    assert (found.kind, found.size, found.count) == ("all-reduce", 4 * 2 * 4, 1)
    assert found.why == "the sum in dot_general, over a sharded dimension"
    assert found.line == f"{__file__}:{inspect.getsourcelines(product)[1] + 1}"


def test_a_change_of_layout_is_not(mesh):
    (found,) = compiled(mesh, jnp.negative, (P("model"),), P(), (8,))
    assert (found.kind, found.size) == ("all-gather", 8 * 4)
    assert found.why.startswith("nobody asked for it")


def test_a_program_without_any(mesh):
    assert compiled(mesh, jnp.negative, (P("model"),), P("model"), (8,)) == []


@pytest.mark.parametrize(
    ("line", "kind", "size"),
    [
        ("  %a = (f32[4]{0}, f32[8]{0}) all-gather-start(%x), channel_id=1", "all-gather", 32),
        ("  ROOT b.1 = bf16[2,3]{1,0} collective-permute(%x)", "collective-permute", 12),
        ("  %b.2 = (f32[2]{0}, f32[3]{0}, u32[], u32[]) collective-permute-start(%x)", "collective-permute", 12),
        ("  %b.3 = (f32[4]{0}, f32[8]{0}) all-reduce(%x, %y)", "all-reduce", 48),
        ("  %c = pred[] all-reduce(%x)", "all-reduce", 1),
        ("  %d = f8e4m3fn[16]{0} all-to-all(%x)", "all-to-all", 16),
    ],
)
def test_forms_of_instructions(line, kind, size):
    (found,) = collectives(line, [], 2)
    assert (found.kind, found.size, found.line) == (kind, size, None)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("jit(f)/vmap(jit(g)/dot_general)", "dot_general"),
        ("jit(f)/transpose(jvp(Net))/b0/dot_general", "dot_general"),
        ("jit(f)/(transpose(jvp(Net))/b0/dot_general:b0/reduce_sum:reduce_sum)", "dot_general and reduce_sum"),
        ("jit(f)/b0/(Norm_0/reduce_sum:Dense_0/reduce_sum)", "reduce_sum"),
    ],
)
def test_operations_are_named_without_what_is_around_them(name, words):
    line = f'  %a = f32[8]{{0}} all-reduce(%x), metadata={{op_name="{name}"}}'
    (found,) = collectives(line, [], 2)
    assert found.why == f"the sum in {words}, over a sharded dimension"


def test_what_only_uses_a_collective_is_none():
    assert collectives("  %f = f32[8]{0} fusion(%all-reduce.1), kind=kLoop", [], 2) == []
    assert collectives("  %g = f32[8]{0} all-gather-done(%all-gather-start)", [], 2) == []


def test_the_report_of_a_step_has_them():
    mesh = mm.MultiMesh(axis_sizes=(2, 2), axis_names=("stage", "model"))

    def step(x, w):
        def layer(x, w):
            return mm.with_sharding_constraint(x, P(None, "model")) @ w

        return mm.task(layer, task=mm.stage(1, 2, axis="stage"))(x, w)

    report = mm.mjit(step, mesh=mesh).plan(jnp.ones((4, 8)), jnp.ones((8, 2)))
    assert [(row.submesh, row.found.kind, row.runs) for row in report.collectives if row.found.kind == "all-reduce"]
    assert "Collectives, between the devices of a submesh" in str(report)


class Block(nn.Module):
    """A layer of which a library makes all equations, and its collectives."""

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(16)(x)
        h = nn.LayerNorm()(mm.with_sharding_constraint(h, P("data", "model")))
        return nn.Dense(8)(h)


@pytest.mark.parametrize("count", [None, 2])
def test_lines_are_those_of_the_users_step(count, free_promotion):
    """Not those of the library, and not the call of the step; equal stages are compiled once."""
    block = Block()

    def loss(params, x):
        for stage, each in enumerate(params):
            x = mm.task(block.apply, task=on(stage))(each, x)
        return jnp.mean(x**2)

    def step(params, x):
        grad = jax.grad(loss)
        grads = (mm.microbatch(grad, count=count, argnum=1) if count else grad)(params, x)
        updates, _ = optax.clip_by_global_norm(1.0).update(grads, optax.EmptyState())
        return jax.tree.map(lambda p, u: p - u, params, updates)

    x = jnp.ones((8, 8))
    params = [block.init(jax.random.key(seed), x) for seed in range(2)]
    report = mm.mjit(step, mesh=mm.MultiMesh(axis_sizes=(2, 2, 2), axis_names=("stage", "data", "model"))).plan(
        params, x
    )
    allowed = set()
    for function in (Block, loss, step):
        lines, start = inspect.getsourcelines(function)
        allowed |= {f"{__file__}:{line}" for line in range(start, start + len(lines))}
    found = [row.found.line for row in report.collectives]
    assert {line for line in found if line is not None} <= allowed
    dense = inspect.getsourcelines(Block)[1] + next(
        number for number, line in enumerate(inspect.getsourcelines(Block)[0]) if "nn.Dense(8)" in line
    )
    sums = {row.submesh for row in report.collectives if row.found.line == f"{__file__}:{dense}"}
    assert sums == {0, 1}
    assert "site-packages" not in str(report)
