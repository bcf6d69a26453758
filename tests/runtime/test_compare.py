"""Two runs compared, array by array: kept in files and read again, equal, different, missing."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from mmruntime._commands.compare import Leaf, Recorded, Tolerance, compare, errors, load, main, near, nearness
from mmruntime._commands.entry_point import FunctionName
from mmruntime._commands.verify import run


def leaf(value, dtype="float32", name="result"):
    array = None if value is None else np.asarray(value, dtype=jnp.dtype(dtype))
    return Leaf(name, "result", array, dtype, "device 0")


def difference(before, after, dtype="float32", **tolerance):
    (row,) = compare([leaf(before, dtype)], [leaf(after, dtype)], Tolerance(**tolerance))
    return row.absolute, row.relative, row.problem


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "bool", "complex64", "float8_e4m3fn", "uint32"])
@pytest.mark.parametrize("value", [1, [[0, 1, 1], [1, 0, 1]], []])
def test_arrays_of_every_type_come_back_from_files(tmp_path, dtype, value):
    array = np.asarray(value, dtype=jnp.dtype(dtype))
    record = Recorded(str(tmp_path))
    record.argument("x", array, dtype, "device 3")
    record.result("y", None, "builtins.object", "host")
    record.close()
    first, second = load(str(tmp_path))
    assert (first.name, first.role, first.where, first.array.dtype) == ("x", "argument", "device 3", array.dtype)
    np.testing.assert_array_equal(first.array, array)
    assert (second.array, second.kind, second.role) == (None, "builtins.object", "result")


def test_differences_are_the_largest_ones():
    absolute, relative, problem = difference([1.0, 200.0, 0.0], [1.0, 200.01, 5e-7])
    assert absolute == pytest.approx(0.01, rel=1e-3)
    assert relative == pytest.approx(5e-5, rel=1e-3)
    assert problem is None


@pytest.mark.parametrize("scale", [1e-30, 1e-9, 1.0, 1e9])
def test_an_array_is_judged_by_its_own_scale(scale):
    before = np.array([1.0, -0.5, 0.0]) * scale
    assert difference(before, before + 5e-6 * scale)[2] is None
    assert difference(before, before + 5e-4 * scale)[2] is not None
    # A tolerance that is given holds for all.
    assert difference(before, before + 5e-4 * scale, atol=1e-3 * scale)[2] is None
    # Nothing is near to zero alone.
    assert difference([0.0], [scale])[1] is None
    assert difference([0.0], [scale])[2] is not None


def test_what_was_saved_is_compared_by_a_process_of_its_own(tmp_path, capsys):
    for name, value in (("before", 1.0), ("after", 2.0)):
        (tmp_path / name).mkdir()
        record = Recorded(str(tmp_path / name))
        record.result("x", np.float32(value), "float32", name)
        record.close()
    assert main([str(tmp_path / "before"), str(tmp_path / "after")]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["absolute"], row["relative"], row["comparable"]) == (1.0, 1.0, True)
    assert (row["original_where"], row["where"]) == ("before", "after")
    assert main([str(tmp_path / "before"), str(tmp_path / "after"), "--rtol", "2"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"][0]["problem"] is None
    # What a program leaves may be anything.
    for text in ("[", "{}", '[{"name": 1}]', '[{"name": "x", "role": "result", "kind": "f", "where": "", "array": 7}]'):
        (tmp_path / "after" / "run.json").write_text(text)
        assert main([str(tmp_path / "before"), str(tmp_path / "after")]) == 2, text
        assert "what a program saved cannot be read" in json.loads(capsys.readouterr().out)["error"]
    (tmp_path / "before" / "0.bin").write_bytes(b"123")
    assert main([str(tmp_path / "before"), str(tmp_path / "before")]) == 2


@pytest.mark.parametrize(
    ("dtype", "near", "far"),
    [
        ("float64", 1 + 5e-10, 1 + 5e-9),
        ("float32", 1 + 5e-5, 1 + 5e-4),
        ("complex64", 1 + 5e-5j, 1 + 5e-4j),
    ],
)
def test_tolerances_go_by_the_type(dtype, near, far):
    assert difference([1.0], [near], dtype)[2] is None
    assert "1 of 1 elements differ by more than" in difference([1.0], [far], dtype)[2]
    assert difference([1.0], [far], dtype, rtol=0.5)[2] is None
    assert difference([1.0], [near], dtype, rtol=0.0, atol=0.0)[2].startswith(
        "1 of 1 elements differ and must be equal"
    )


def test_short_types_are_equal_or_need_more_than_a_tolerance():
    (row,) = compare([leaf([1.0], "bfloat16")], [leaf([1 + 2**-6], "bfloat16")], Tolerance())
    assert (row.problem, row.tolerable) == ("1 of 1 elements differ, the first at [0]: 1.0 became 1.015625", True)
    (row,) = compare([leaf([1.0], "bfloat16")], [leaf([1 + 2**-3], "bfloat16")], Tolerance())
    assert "differ by more than" in row.problem and not row.tolerable
    # A tolerance that is given has the last word.
    assert difference([1.0], [1 + 2**-6], "bfloat16", rtol=0.05)[2] is None
    assert difference([1.0], [1.0], "bfloat16")[2] is None


@pytest.mark.parametrize(("dtype", "before", "after"), [("int32", 7, 8), ("bool", True, False), ("uint8", 1, 0)])
def test_whole_numbers_are_equal_or_not(dtype, before, after):
    assert difference([before, 1], [before, 1], dtype) == (0.0, 0.0, None)
    absolute, _, problem = difference([[before, 1]], [[after, 1]], dtype, rtol=10.0)
    assert absolute == 1
    assert problem.startswith("1 of 2 elements differ and must be equal, the first at [0, 0]: ")


def test_what_is_not_finite_must_be_the_same():
    assert difference([np.nan, np.inf, -np.inf], [np.nan, np.inf, -np.inf]) == (0.0, 0.0, None)
    absolute, _, problem = difference([np.inf, 1.0], [-np.inf, np.nan])
    assert absolute is None
    assert problem.startswith("2 of 2 elements differ")


def test_what_is_not_on_both_sides():
    rows = compare([leaf(1, name="a"), leaf(1, name="b")], [leaf(1, name="b"), leaf(1, name="c")], Tolerance())
    assert [row.problem for row in rows] == [
        "only the original program has it",
        None,
        "only the rewritten program has it",
    ]
    (row,) = compare([leaf([1.0, 2.0])], [leaf([[1.0]], "bfloat16")], Tolerance())
    assert row.problem == "it became bfloat16[1, 1], from float32[2]"
    (row,) = compare([leaf(None, "str")], [leaf(None, "str")], Tolerance())
    assert (row.problem, row.absolute) == (None, None)


PROGRAM = """
import jax.numpy as jnp
import numpy as np


def example():
    return {{"w": jnp.ones(3), "kept": jnp.ones(2), "count": 0}}, np.zeros(2), jnp.arange(3.0)


def step(state, seen, x):
    {body}
"""
CHANGES = """state["w"] = state["w"] - {rate} * x
    seen[0] = x.sum()
    state["count"] += 1"""


def recorded(tmp_path, monkeypatch, name, body):
    (tmp_path / f"{name}.py").write_text(PROGRAM.format(body=body))
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / name / "saved").mkdir(parents=True)
    step, example = FunctionName("--entry", f"{name}:step"), FunctionName("--args", f"{name}:example")
    run(step, example, str(tmp_path / name / "saved"))
    return load(str(tmp_path / name / "saved"))


def test_what_a_step_changes_in_place_is_compared(tmp_path, monkeypatch):
    programs = {
        "before_": CHANGES.format(rate=0.1),
        "equal_": CHANGES.format(rate=0.1) + "\n    state['kept'] = state['kept'] + 0",
        "other_": CHANGES.format(rate=0.2),
        "nothing_": "pass",
        "less_": "del state['w']",
    }
    runs = {name: recorded(tmp_path, monkeypatch, name, body) for name, body in programs.items()}
    changed = [leaf.name for leaf in runs["before_"] if leaf.role == "result"]
    assert changed == ["state['count'] after the call", "state['w'] after the call", "seen after the call"]
    assert [leaf.role for leaf in runs["nothing_"]] == ["argument"] * 5

    def problems(name):
        rows = compare(runs["before_"], runs[name], Tolerance())
        return [row.as_json()["name"] for row in rows if row.problem is not None]

    assert problems("equal_") == []
    assert problems("other_") == ["state['w'] after the call"]
    # What one program leaves alone is what it was.
    assert problems("nothing_") == changed
    assert problems("less_") == changed


PARTS = 64
SHORT_TYPES = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")


def gradients(dtype, *shape, seed=0):
    """The sum of gradients of microbatches: in float64, on one device in `dtype`, and the gradients in that type."""
    parts = np.random.default_rng(seed).normal(0.02, 0.02, (PARTS, *shape))
    parts = parts.astype(jnp.dtype(dtype))
    exact = parts.astype(np.float64).sum(0)
    return exact, exact.astype(jnp.dtype(dtype)), parts


def kept_in_its_type(parts):
    total = np.zeros_like(parts[0])
    for part in parts:
        total = (total + part).astype(parts.dtype)
    return total


def in_float32(parts):
    return parts.astype(np.float32).sum(0)


def off_in_a_slice(parts):
    total = in_float32(parts)
    total[: len(total) // 4] *= 1.05
    return total


MISTAKES = {
    "5 % off": lambda parts: in_float32(parts) * 1.05,
    "a quarter 5 % off": off_in_a_slice,
    "kept in its type": kept_in_its_type,
    "a microbatch too few": lambda parts: in_float32(parts[1:]),
    "twice a microbatch": lambda parts: in_float32(parts) + parts[0].astype(np.float32),
    "not finite": lambda parts: in_float32(parts) + np.where(np.arange(parts.shape[-1]) == 3, np.nan, 0),
}
# A mistake of less than the spacing shows in float64 alone.
LARGER_THAN_EIGHT_BITS = ("kept in its type", "not finite")


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("dtype", SHORT_TYPES)
def test_mistakes_are_farther_from_float64(dtype, mistake):
    if dtype.startswith("float8") and mistake not in LARGER_THAN_EIGHT_BITS:
        return
    exact, one_device, parts = gradients(dtype, 16, 16)
    found = errors(one_device, MISTAKES[mistake](parts).astype(one_device.dtype), exact)
    # Beside other arrays that are right, as there are in a program.
    right = errors(one_device, in_float32(parts).astype(one_device.dtype), exact)
    assert near({"right": right, "more": right, "wrong": found}) == {"right": True, "more": True, "wrong": False}


@pytest.mark.parametrize("shape", [(), (3,), (16, 16)])
@pytest.mark.parametrize("dtype", SHORT_TYPES)
def test_other_orders_of_sums_are_as_near(dtype, shape):
    for seed in range(8):
        exact, one_device, parts = gradients(dtype, *shape, seed=seed)
        # One more rounding, of what crosses to another stage.
        halves = [in_float32(half).astype(parts.dtype) for half in (parts[::2], parts[1::2])]
        for total in (in_float32(parts[::-1]), in_float32(np.stack(halves))):
            found = {"result": errors(one_device, total.astype(one_device.dtype), exact)}
            assert near(found) == {"result": True}, found


def test_what_is_rounding_alone_is_as_near_within_limits():
    noise = np.random.default_rng(0).normal(0, 1e-4, 32)
    one_device, exact = noise.astype(jnp.bfloat16), np.zeros(32)
    for factor, is_near in ((-4, True), (100, False)):
        for reference in (exact, noise[::-1] * 1e-12):
            assert near({0: errors(one_device, one_device * factor, reference)}) == {0: is_near}
    # Zero in one device's own type as well, by its structure: so it is elsewhere.
    assert near({0: errors(exact, exact, exact)}) == {0: True}
    assert near({0: errors(exact, noise, exact)}) == {0: False}


def test_where_one_device_is_not_finite_nothing_is_farther():
    one_device, exact = np.array([np.inf, 1.0, 2.0], np.float16), np.array([1e5, 1.0, 2.0])
    for value, is_near in ((np.float16(6e4), True), (np.float16(np.inf), True)):
        assert near({0: errors(one_device, np.array([value, 1.0, 2.0], np.float16), exact)}) == {0: is_near}
    assert near({0: errors(one_device, np.array([np.inf, np.nan, 2.0], np.float16), exact)}) == {0: False}
    # Infinity that float64 has, too, is right.
    assert near({0: errors(one_device, np.array([1.0, 1.0, 2.0], np.float16), one_device.astype(float))}) == {0: False}


def test_a_lucky_loss_is_held_to_the_types_of_the_program_and_to_other_arguments():
    def run(value, role="result"):
        return [Leaf("result", role, np.float32(value), "float32", "device 0")]

    exact = run(np.float64(1.0))
    for off, is_near in ((0.003, True), (0.05, False)):
        (found,) = nearness(run(1.0), run(1 + off), exact, shortest=2**-7).values()
        assert found.near == is_near
        (found,) = nearness(run(1.0), run(1 + off), exact).values()
        assert not found.near
        assert found.as_json() == {
            "near": False,
            "error_measure": "norm",
            "original_error": 0.0,
            "rewritten_error": pytest.approx(off, rel=1e-3),
        }
        (found,) = nearness(run(1.0), run(1 + off), exact, disturbed=run(1 + off / 1.5, "farthest")).values()
        assert found.near
    # With random numbers of its own, each program has a reference of its own.
    (found,) = nearness(run(1.0), run(2.0), exact, run(2.0)).values()
    assert found.near and found.errors.rewritten == 0


def test_an_element_that_moves_by_half_of_its_size_does_not_count():
    # What an optimizer makes of the sign of a gradient that is near to zero.
    exact, other = np.array([0.1, -0.1, 0.1]), np.array([0.1, 0.1, 0.1], np.float32)
    one_device = exact.astype(np.float32)
    assert near({0: errors(one_device, other, exact)}) == {0: False}
    for spread, is_near in (([0, 0.2, 0], True), ([0.2, 0, 0.2], False), ([0, 0.01, 0], False)):
        assert near({0: errors(one_device, other, exact, spread=np.array(spread))}) == {0: is_near}
