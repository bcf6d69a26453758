"""Two runs compared, array by array: kept in files and read again, equal, different, missing."""

import jax.numpy as jnp
import numpy as np
import pytest

from mmruntime._commands.compare import Leaf, Recorded, Tolerance, compare, load


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


@pytest.mark.parametrize(
    ("dtype", "near", "far"),
    [
        ("float64", 1 + 5e-10, 1 + 5e-9),
        ("float32", 1 + 5e-5, 1 + 5e-4),
        ("bfloat16", 1 + 2**-6, 1 + 2**-3),
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
