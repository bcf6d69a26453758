import pytest

from mmrewrite.testing import cases, check_case


@pytest.mark.parametrize("case", cases("fixtures/move_frobnicate"), ids=str)
def test_modernize(case):
    check_case(case, engine="modernize")


@pytest.mark.parametrize("case", cases("fixtures/wait_for_value"), ids=str)
def test_hints(case):
    check_case(case)
