"""The collectives of compiled programs: how many, how large, from which line, and who asked for them."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import mmruntime as mm
from mmruntime._inspect.collectives import collectives

pytestmark = pytest.mark.both_versions("the text of compiled programs")


@pytest.fixture(scope="module")
def mesh():
    return Mesh(np.array(jax.devices()[:2]), ("model",))


def compiled(mesh, function, inputs, output, *shapes):
    shardings = [NamedSharding(mesh, spec) for spec in inputs]
    step = jax.jit(function, in_shardings=shardings, out_shardings=NamedSharding(mesh, output))
    return step.lower(*(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)).compile().as_text()


def product(x, w):
    return jnp.dot(x, w)


def test_a_sum_over_a_sharded_dimension_is_asked_for(mesh):
    text = compiled(mesh, product, (P(None, "model"), P("model")), P(), (4, 8), (8, 2))
    (found,) = collectives(text)
    assert (found.kind, found.size, found.count) == ("all-reduce", 4 * 2 * 4, 1)
    assert found.why == "the sum in dot_general, over a sharded dimension"
    assert found.line == f"{__file__}:{inspect.getsourcelines(product)[1] + 1}"


def test_a_change_of_layout_is_not(mesh):
    (found,) = collectives(compiled(mesh, jnp.negative, (P("model"),), P(), (8,)))
    assert (found.kind, found.size) == ("all-gather", 8 * 4)
    assert found.why.startswith("nobody asked for it")


def test_a_program_without_any(mesh):
    assert collectives(compiled(mesh, jnp.negative, (P("model"),), P("model"), (8,))) == []


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
    (found,) = collectives(line)
    assert (found.kind, found.size, found.line) == (kind, size, None)


def test_what_only_uses_a_collective_is_none():
    assert collectives("  %f = f32[8]{0} fusion(%all-reduce.1), kind=kLoop") == []
    assert collectives("  %g = f32[8]{0} all-gather-done(%all-gather-start)") == []


def test_the_report_of_a_step_has_them():
    mesh = mm.MultiMesh(axis_sizes=(2, 2), axis_names=("stage", "model"))

    def step(x, w):
        def layer(x, w):
            return mm.with_sharding_constraint(x, P(None, "model")) @ w

        return mm.task(layer, task=mm.stage(1, 2, axis="stage"))(x, w)

    report = mm.mjit(step, mesh=mesh).plan(jnp.ones((4, 8)), jnp.ones((8, 2)))
    assert [(row.submesh, row.found.kind, row.runs) for row in report.collectives if row.found.kind == "all-reduce"]
    assert "Collectives, between the devices of a submesh" in str(report)
