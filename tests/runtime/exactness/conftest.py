"""Programs in this folder are as people write them: promotions of ranks and types are left to JAX."""

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def as_people_write() -> Iterator[None]:
    import jax

    with jax.enable_x64(True), jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield
