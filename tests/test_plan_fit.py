"""Whether a traced step fits, from the runtime's document, and sizes as people write them."""

from __future__ import annotations

from typing import Any

import pytest

from mmrewrite.directives.sizes import parse_size
from mmrewrite.plan.fit import fit

pytestmark = pytest.mark.quick

KINDS = ("parameters", "optimizer_state", "inputs", "gradients", "activations", "received", "results", "temporary")


@pytest.mark.parametrize(
    ("text", "size"),
    [("1B", 1), ("80GiB", 80 * 2**30), ("80 gb", 80 * 10**9), (" 1.5KiB ", 1536), ("512MB", 512 * 10**6)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "80", "GiB", "80 Gigs", "-1GB", "0GB", "1e3MB", "1.GB", f"{'9' * 400}GB"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no size; write a number and a unit, such as 80GiB or 512MB"):
        parse_size(text)


def traced(*rows: dict[str, int], live: tuple[int, ...] = (2, 1)) -> dict[str, Any]:
    memory = [
        {
            "submeshes": [number],
            "held": dict.fromkeys(KINDS, 0) | held,
            "total": sum(held.values()),
            "running": f"layer_{number}, backward of microbatch 0",
        }
        for number, held in enumerate(rows)
    ]
    loop = {"schedule": "gpipe", "live": list(live), "submeshes": list(range(len(rows)))}
    return {"memory": memory, "loops": [loop]}


def test_a_step_that_fits_names_the_fullest_submesh() -> None:
    found = fit(traced({"parameters": 2**30}, {"parameters": 2**30, "temporary": 2**29}), 2 * 2**30)
    assert found.fits
    assert found.sentences == ("fits: each device of submesh 1 needs most, 1.5 GiB of 2.0 GiB",)


@pytest.mark.parametrize("kind", KINDS)
def test_each_part_has_its_advice(kind: str) -> None:
    found = fit(traced({"parameters": 1, kind: 3000}, {"parameters": 1}), 2048)
    assert not found.fits
    what, change = found.sentences
    assert what.startswith("does not fit: each device of submesh 0 needs 2.9")
    assert f"KiB are {kind.replace('_', ' ')}, while this runs: layer_0, backward of microbatch 0" in what
    assert change.startswith("to change: ")


def test_a_schedule_with_fewer_microbatches_in_flight_is_the_first_advice() -> None:
    _, change = fit(traced({"activations": 3000}, {"parameters": 1}, live=(8, 8)), 2048).sentences
    assert change.startswith(
        'to change: write `schedule="1f1b"` in the hint `microbatch`: it has at most 2 microbatches'
    )
    assert "gpipe has 8" in change
    _, change = fit(traced({"activations": 3000}, {"parameters": 1}), 2048).sentences
    assert "schedule" not in change
