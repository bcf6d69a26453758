"""`validation/score_annotate.py`: what it calls equal, and what it says of rewritten and refused programs."""

from pathlib import Path
from types import ModuleType

import pytest
from scripts import load_script

# The script compares arrays; NumPy comes with the runtime's extra.
np = pytest.importorskip("numpy")

ROOT = Path(__file__).resolve().parents[1]
HINTED = """
import jax

for block in blocks:  # mm: stages
    x = block(x)
"""
REFUSED = """
import jax

grads = jax.grad(loss_fn)(params, inputs, targets)  # mm: microbatch(size=2)
"""
MEETING = """
import jax
import jax.numpy as jnp


def loss_fn(params, batch):
    return jnp.mean((batch @ params) ** 2) ** 2


def make():
    return jnp.ones((4, 2)), jnp.ones((8, 4))


def reference(params, batch):
    return (jax.grad(loss_fn)(params, batch),)


def step(params, batch):
    grads = jax.grad(loss_fn)(params, batch)  # mm: microbatch(size=2)
    return (grads,)
"""


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("validation/score_annotate.py")


def test_a_difference_is_measured_by_the_largest_entry_of_its_array(script: ModuleType) -> None:
    one = {"[0]": np.array(4.0), "[1]['kernel']": np.array([2.0, -8.0]), "[1]['bias']": np.array([0.5])}
    many = {"[0]": np.array(4.0), "[1]['kernel']": np.array([2.4, -8.0]), "[1]['bias']": np.array([0.25])}
    assert script.relative(one, many) == pytest.approx({"[0]": 0.0, "[1]['kernel']": 0.05, "[1]['bias']": 0.5})


def test_a_random_key_is_no_scale_for_what_is_beside_it(script: ModuleType) -> None:
    one = {"[0]['key']": np.array([4_000_000_000], np.uint32), "[0]['kernel']": np.array([2.0])}
    many = {"[0]['key']": np.array([4_000_000_000], np.uint32), "[0]['kernel']": np.array([2.5])}
    assert script.relative(one, many) == pytest.approx({"[0]['key']": 0.0, "[0]['kernel']": 0.25})


def test_rounding_of_a_gradient_that_is_zero_is_measured_by_its_tree(script: ModuleType) -> None:
    one = {"[0]": np.array(1e6), "[1]['kernel']": np.array([0.1]), "[1]['bias']": np.array([1e-11])}
    many = {"[0]": np.array(1e6), "[1]['kernel']": np.array([0.1]), "[1]['bias']": np.array([-1e-11])}
    assert script.relative(one, many)["[1]['bias']"] == pytest.approx(2e-11 / (script.FLOOR * 0.1))


def test_a_small_gradient_that_is_wrong_is_not_taken_for_rounding(script: ModuleType) -> None:
    one = {"[1]['kernel']": np.array([0.1]), "[1]['bias']": np.array([1e-7])}
    many = {"[1]['kernel']": np.array([0.1]), "[1]['bias']": np.array([0.0])}
    assert script.relative(one, many)["[1]['bias']"] > 1e-3


def test_not_a_number_is_never_equal(script: ModuleType) -> None:
    assert script.relative({"[0]": np.array(1.0)}, {"[0]": np.array(np.nan)})["[0]"] == float("inf")
    assert script.relative({"[0]": np.array(np.inf)}, {"[0]": np.array(-np.inf)})["[0]"] == float("inf")
    # The best loss of a schedule that has seen none.
    assert script.relative({"[0]": np.array(np.inf)}, {"[0]": np.array(np.inf)})["[0]"] == 0


def test_types_and_shapes_are_compared(script: ModuleType) -> None:
    one = {"[0]": np.zeros((2, 1), np.float32)}
    assert script.unlike(one, {"[0]": np.zeros((2, 2), np.float32)}) == "[0] is float32[2, 2] for float32[2, 1]"
    assert script.unlike(one, {"[0]": np.zeros((2, 1))}) == "[0] is float64[2, 1] for float32[2, 1]"
    assert script.unlike(one, {"[1]": one["[0]"]}) == "other names: ['[0]', '[1]']"
    assert script.unlike(one, dict(one)) == ""


def test_each_layer_is_on_its_stage(script: ModuleType) -> None:
    def on(*devices: int) -> list[object]:
        return [[device, [[0, 4]]] for device in devices]

    shards = {"[0]['block_0']": on(0, 1, 2, 3), "[0]['block_1']": on(4, 5), "[1].mu['block_1']": on(6), "[2]": on(0)}
    assert script.misplaced(shards, 2, "block_([0-9]+)", [0, 1]) == []
    shards["[1].mu['block_1']"] = on(0)
    assert script.misplaced(shards, 2, "block_([0-9]+)", [0, 1]) == ["[1].mu['block_1']: layer 1 on stage 0, not 1"]
    assert script.misplaced(shards, 1, "block_([0-9]+)", [0, 1, 1])[-1] == "no array of layer 2 in [0]"
    # The rows of a stack are its layers.
    stack = {"[0]['blocks']": [[0, [[0, 2], [0, 3]]], [5, [[2, 4], [0, 3]]]]}
    assert script.misplaced(stack, 1, "blocks", [0, 0, 1, 1]) == []
    assert script.misplaced(stack, 1, "blocks", [0, 1, 1, 1]) == ["[0]['blocks']: layer 1 on stage 0, not 1"]


@pytest.mark.family
@pytest.mark.parametrize(
    ("source", "told", "found", "passed"),
    [
        (HINTED, 'expect = "rewritten"', "rewritten", True),
        (HINTED, 'expect = "refused"', "rewritten, for another reason", False),
        (REFUSED, 'expect = "refused"\nrefusal = "more than one argument"', "refused", True),
        (REFUSED, 'expect = "refused"\nrefusal = "no such reason"', "refused, for another reason", False),
        (MEETING, 'expect = "raises"\nrun = "program"\nrefusal = "program.py:8 .loss_fn."', "raises", True),
        (MEETING, 'expect = "refused"\nrefusal = "more than one"', "rewritten, for another reason", False),
    ],
)
def test_a_case_is_scored_by_what_became_of_its_text(
    script: ModuleType, tmp_path: Path, source: str, told: str, found: str, passed: bool
) -> None:
    (tmp_path / "program.py").write_text(source)
    (tmp_path / "score.toml").write_text(f'title = "a case"\n{told}\n')
    score = script.score(tmp_path)
    assert (score.found, score.passed) == (found, passed)
