"""Plans of a step, compared by the model of their costs."""

import time

import pytest

from mmrewrite.suggest.costs import Layer, Line
from mmrewrite.suggest.devices import find_device
from mmrewrite.suggest.model import CostModel
from mmrewrite.suggest.output import as_text
from mmrewrite.suggest.search import find_plans
from mmrewrite.suggest.traced import Suggested, Wanted


def _layers(count: int, width: int = 4096, head: float = 1.0) -> list[Layer]:
    """Layers of a transformer with 2048 positions a row, in bfloat16, the last with a head."""
    made = []
    for index in range(count):
        heavier = head if index == count - 1 else 1.0
        products = {"bfloat16": Line(0.0, heavier * 24.0 * width**2 * 2048)}
        size = 24.0 * width**2
        one = (products, Line(size, 16.0 * width * 2048))
        kept = Line(0.0, 68.0 * width * 2048)
        edge = {index + 1: Line(0.0, 2.0 * width * 2048)} if index + 1 < count else {}
        made.append(Layer((one, one, one), kept, kept, edge, size, 2 * size, 2 * size, 0.0))
    return made


@pytest.mark.parametrize(
    ("count", "devices", "batch", "width", "head"),
    [(8, 4, 16, 1024, 1.0), (8, 8, 32, 4096, 2.0), (12, 16, 64, 8192, 1.5)],
)
def test_the_first_place_is_that_of_all_plans(count: int, devices: int, batch: int, width: int, head: float) -> None:
    model = CostModel(_layers(count, width, head), batch, find_device("h100"), donates=True)
    few = find_plans(model, devices, 1, data=True)
    every = find_plans(model, devices, 1, data=True, is_exhaustive=True)
    assert few.best == every.best
    assert few.verdict == every.verdict
    assert few.priced <= every.priced


@pytest.mark.slow
def test_the_search_of_64_devices_takes_seconds() -> None:
    model = CostModel(_layers(48), 256, find_device("h100"), donates=True)
    begun = time.process_time()
    found = find_plans(model, 64, 1, data=True)
    assert time.process_time() - begun < 10
    assert found.verdict in ("pipeline", "plain")


def test_a_small_model_stays_on_one_device() -> None:
    found = find_plans(CostModel(_layers(4, 64), 8, find_device("h100"), donates=True), 8, 1, data=True)
    assert found.verdict == "one"


def test_what_fits_nowhere_is_said() -> None:
    found = find_plans(CostModel(_layers(8, 65536), 8, find_device("l40s"), donates=True), 4, 1, data=True)
    assert found.verdict == "nothing"
    assert found.best is None
    assert found.others


def test_an_unknown_device_names_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean h100"):
        find_device("H100")


@pytest.mark.parametrize(
    ("devices", "logical_axes", "expected"),
    [
        (8, {"hidden": "model", "batch": None}, '; axes(hidden="model", batch="data")'),
        (8, {"hidden": "model"}, '; axes(hidden="model", batch="data")'),
        (8, {"batch": ["data"], "heads": ["model", "data"]}, '; axes(batch="data", heads=("model", "data"))'),
        (2, {"hidden": "model", "batch": "data"}, '; axes(hidden="model", batch=None)'),
        (2, {"hidden": "model"}, '; axes(hidden="model")'),
        (2, {}, ""),
    ],
)
def test_all_axes_of_the_hint_are_written(devices: int, logical_axes: dict[str, object], expected: str) -> None:
    device = find_device("h100")
    found = find_plans(CostModel(_layers(2, 1024), 8, device, donates=True), devices, 1, data=True)
    assert found.best is not None
    assert (found.best.choice.data > 1) == (devices > 2)
    wanted = Wanted("m:step", "m:example", device, devices)
    text = as_text(Suggested(wanted, devices, 8, 2, "stage", "data", "batch", logical_axes, {}, None, devices, found))
    written = next(line for line in text.splitlines() if "mm: mesh(" in line)
    assert written.partition(")")[2] == expected
