"""Programs in this folder are as people write them: in double precision, with promotions left to JAX."""

import pytest


@pytest.fixture(autouse=True)
def as_people_write(double: None, free_promotion: None) -> None:
    pass
