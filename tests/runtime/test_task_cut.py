import itertools

import jax.numpy as jnp
import pytest

import mmruntime as mm
from mmruntime.schedules import cut


@pytest.mark.parametrize(("count", "parts"), [(4, 4), (8, 4), (7, 3), (5, 2), (12, 5)])
def test_equal_layers_are_dealt_out_evenly(count, parts):
    bounds = cut((1.0,) * count, parts)
    sizes = [b - a for a, b in itertools.pairwise(bounds)]
    assert sum(sizes) == count
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("weights", [(5, 1, 1, 1), (1, 1, 1, 5), (3, 1, 4, 1, 5, 9, 2, 6), (0, 0, 1), (2, 2, 2, 1, 1)])
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_the_heaviest_part_is_as_light_as_can_be(weights, parts):
    def heaviest(bounds):
        return max(sum(weights[a:b]) for a, b in itertools.pairwise(bounds))

    inner = itertools.combinations(range(1, len(weights)), parts - 1)
    best = min(heaviest((0, *middle, len(weights))) for middle in inner)
    assert heaviest(cut(weights, parts)) == best


def test_stage_gives_each_slice_a_contiguous_run():
    mesh = mm.MultiMesh(axis_sizes=(3,), axis_names=("stage",))
    with mesh:
        slices = [mm.stage(i, 7).mesh_slice["stage"] for i in range(7)]
        assert mm.stage(0, 7) == mm.stage(1, 7)
    assert slices == sorted(slices)
    assert set(slices) == {0, 1, 2}


def test_stage_with_weights():
    mesh = mm.MultiMesh(axis_sizes=(2,), axis_names=("stage",))
    with mesh:
        slices = [mm.stage(i, 4, weights=(5, 1, 1, 1)).mesh_slice["stage"] for i in range(4)]
    assert slices == [0, 1, 1, 1]


def test_stage_errors_name_both_numbers():
    mesh = mm.MultiMesh(axis_sizes=(4,), axis_names=("stage",))
    with mesh, pytest.raises(ValueError, match="3 layers cannot be dealt out over 4 slices of axis 'stage'"):
        mm.stage(0, 3)
    with mesh, pytest.raises(ValueError, match="the mesh has no axis 'pipe'; its axes are 'stage'"):
        mm.stage(0, 8, axis="pipe")
    with pytest.raises(ValueError, match=r"index=9 must lie in 0\.\.7"):
        mm.stage(9, 8)
    with pytest.raises(ValueError, match="weights has 2 entries, but there are count=3 layers"):
        mm.stage(0, 3, weights=(1, 2))
    with pytest.raises(ValueError, match=r"weights must not be negative, got -1\.0"):
        mm.stage(0, 2, weights=(1, -1))


def test_without_a_mesh_the_slice_is_looked_up_later():
    assert mm.stage(0, 4) == mm.stage(0, 4)
    assert mm.stage(0, 4).name is None


def test_weights_of_flops_balance_the_cut_by_the_traced_operations():
    mesh = mm.MultiMesh(axis_sizes=(2,), axis_names=("stage",))
    widths = [(8, 64), (64, 8), (8, 8), (8, 8), (8, 8)]

    def step(weights, x):
        for index, weight in enumerate(weights):
            x = mm.task(jnp.matmul, task=mm.stage(index, len(weights), weights="flops"))(x, weight)
        return x

    compiled = mm.mjit(step, mesh=mesh)
    weights = [jnp.ones(shape) for shape in widths]
    compiled(weights, jnp.ones((4, 8)))
    homes = [row.submesh for row in compiled.explain().inputs if row.name.startswith("weights")]
    assert homes == [0, 1, 1, 1, 1]


def test_weights_must_be_numbers_flops_or_auto():
    with pytest.raises(ValueError, match='weights must be numbers, one per layer, "flops" or "auto", got \'params\''):
        mm.stage(0, 2, weights="params")
