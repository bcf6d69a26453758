"""Plans of a step, compared by the model of their costs."""

import hashlib
import time
from pathlib import Path

import pytest
from command import PIPELINE, put, run

from mmrewrite.files.cache_folder import VARIABLE, cache_folder
from mmrewrite.suggest.costs import Layer, Line, TensorCut
from mmrewrite.suggest.devices import Accelerator, find_device
from mmrewrite.suggest.kept import KIND, keep_suggestion
from mmrewrite.suggest.model import CostModel, PlanChoice
from mmrewrite.suggest.output import as_text
from mmrewrite.suggest.savings import RECOMPUTE, Saving, again_line, recomputed, savings
from mmrewrite.suggest.search import FixedChoices, find_plans, named
from mmrewrite.suggest.traced import Suggested, Wanted, model_axis_of

# Heads and the width of an MLP.
CUTS = TensorCut(12, 0.33, 0.33, 0.4), TensorCut(4096, 0.66, 0.66, 0.5)


def _layers(count: int, width: int = 4096, head: float = 1.0, cuts: tuple[TensorCut, ...] = ()) -> list[Layer]:
    """Layers of a transformer with 2048 positions a row, in bfloat16, the last with a head."""
    made = []
    for index in range(count):
        heavier = head if index == count - 1 else 1.0
        products = {"bfloat16": Line(0.0, heavier * 24.0 * width**2 * 2048)}
        size = 24.0 * width**2
        one = (products, Line(size, 16.0 * width * 2048))
        kept = Line(0.0, 68.0 * width * 2048)
        edge = {index + 1: Line(0.0, 2.0 * width * 2048)} if index + 1 < count else {}
        made.append(Layer((one, one, one), kept, kept, edge, size, 2 * size, 2 * size, 0.0, cuts))
    return made


@pytest.mark.parametrize(
    ("count", "devices", "batch", "width", "head", "cuts"),
    [(8, 4, 16, 1024, 1.0, ()), (8, 8, 32, 4096, 2.0, CUTS), (12, 16, 64, 8192, 1.5, ()), (4, 8, 4, 16384, 1.0, CUTS)],
)
def test_the_first_place_is_that_of_all_plans(
    count: int, devices: int, batch: int, width: int, head: float, cuts: tuple[TensorCut, ...]
) -> None:
    model = CostModel(_layers(count, width, head, cuts), batch, find_device("h100"), donates=True)
    few = find_plans(model, devices, 1, data=True)
    every = find_plans(model, devices, 1, data=True, is_exhaustive=True)
    assert few.best == every.best
    assert few.verdict == every.verdict
    assert few.priced <= every.priced


def test_a_model_axis_takes_its_share() -> None:
    device = find_device("h100")
    model = CostModel(_layers(4, cuts=CUTS), 8, device, donates=True)
    assert model.models() == [1, 2, 3, 4, 6, 8]
    made = named("1f1b", 2, 4, 1)
    assert made is not None
    alone, halves, eighths = (model.price(PlanChoice(2, 1, 1, 4, "1f1b", model=size), made) for size in (1, 2, 8))
    for cut, whole in ((halves, 1 - 0.99 / 2), (eighths, 1 - 0.66 * 7 / 8)):
        assert cut.parts is not None
        assert alone.parts is not None
        assert cut.parts["parameters"] == pytest.approx(alone.parts["parameters"] * whole)
        assert cut.memory < alone.memory
    # A sum of what layers hand on in each direction for each class, of which eight devices cut one alone.
    edge, link = 2.0 * 4096 * 2048 * 2, device.link(2)
    one = 2 * 1 / 2 * edge / link.bandwidth + link.latency
    (forward, *_), (whole, *_) = model.passes(2, 1, 2)[0], model.passes(2, 1)[0]
    assert forward == pytest.approx(whole * (1 - 0.99 / 2) + 2 * one)
    seconds, memory = model.plain(4, 1, sharded=False, model=2)
    assert memory < model.plain(4, 1, sharded=False)[1]
    assert seconds < model.plain(4, 1, sharded=False)[0]


def test_what_no_layer_has_is_not_cut() -> None:
    found = find_plans(CostModel(_layers(8, 4096), 16, find_device("h100"), donates=True), 8, 1, data=True)
    assert {each.choice.model for each in found.others} == {1}


def test_a_model_axis_can_be_held() -> None:
    model = CostModel(_layers(8, 4096, cuts=CUTS), 16, find_device("h100"), donates=True)
    found = find_plans(model, 8, 1, data=True, fixed=FixedChoices(stages=2, model=2))
    assert found.best is not None
    assert (found.best.choice.model, found.best.choice.data) == (2, 2)
    assert not [each for each in found.others if each.choice.model != 2]


@pytest.mark.parametrize(
    ("pairs", "axes", "astray", "expected"),
    [
        ({"hidden": "model", "batch": "data"}, {"stage": 2, "model": 2}, ["batch"], ("model", {"hidden": 4})),
        ({"hidden": None}, {"stage": 2}, [], ("model", {"hidden": 4})),
        ({"hidden": "tensor"}, {"stage": 2, "tensor": 4}, [], ("tensor", {"hidden": 4})),
        ({"hidden": "model", "words": "model"}, {"stage": 2, "model": 2}, ["words"], (None, {})),
        ({"hidden": "model"}, {"stage": 2, "model": 2}, ["hidden"], (None, {})),
        ({"hidden": "model"}, {"stage": 2, "model": 3}, [], (None, {})),
        ({"hidden": "data"}, {"stage": 2, "data": 2}, [], (None, {})),
        ({"hidden": ["model", "data"]}, {"stage": 2, "model": 2}, [], (None, {})),
        ({}, {"stage": 2}, [], (None, {})),
    ],
)
def test_an_axis_is_free_if_all_that_it_cuts_may_be_cut(
    pairs: dict[str, object], axes: dict[str, int], astray: list[str], expected: object
) -> None:
    cuts = [{"names": ["hidden"], "divides": 8}, {"names": ["hidden"], "divides": 12}, {"names": [], "divides": 5}]
    document = {"cuts": cuts, "astray": astray, "logical_axes": list(pairs.items()), "today": {"axes": axes}}
    assert model_axis_of(document, ("stage", "data")) == expected


@pytest.mark.slow
def test_the_search_of_64_devices_takes_seconds() -> None:
    model = CostModel(_layers(48, cuts=CUTS), 256, find_device("h100"), donates=True)
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


def test_what_saves_memory_is_told_where_memory_decides() -> None:
    roomy, tight = (find_device("h100").with_given({"memory": size}) for size in ("800GiB", "20GiB"))

    def found(device: Accelerator) -> dict[str, Saving]:
        model = CostModel(_layers(24), 64, device, donates=True)
        plans = find_plans(model, 8, 1, data=True, fixed=FixedChoices(stages=4))
        return {each.kind: each for each in savings(model, 8, 1, plans, data=True, fixed=FixedChoices(stages=4))}

    assert not found(roomy)
    again = found(tight)[RECOMPUTE].best
    assert again.memory <= tight.room
    kept, whole = _layers(24)[1], recomputed(_layers(24), 1, 64)
    assert whole.kept.at(2) == kept.sent[2].at(2), "the layer's input"
    (products, _), (back, _), _ = whole.passes
    assert back["bfloat16"].at(1) == 2 * products["bfloat16"].at(1), "the forward pass once more"
    choice = PlanChoice(4, 2, 1, 8, "1f1b")
    made = named("1f1b", 4, 8, 1)
    assert made is not None
    prices = [
        CostModel(_layers(24), 64, tight, donates=True, cuts_state=cuts).price(choice, made) for cuts in (False, True)
    ]
    whole_state, cut_state = (price.parts["optimizer state"] for price in prices if price.parts)
    assert cut_state == whole_state / 2
    assert prices[1].summed > prices[0].summed, "parameters are sent to all"


def test_an_unknown_device_names_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean h100"):
        find_device("H100")


def test_a_faster_plan_is_told_until_a_source_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))
    file = put("train.py", PIPELINE)
    folder = cache_folder(KIND)
    assert folder is not None
    step, sources = ("train:step", "train:example"), {"train.py": hashlib.sha256(file.read_bytes()).hexdigest()}
    keep_suggestion(folder, step, sources, "another plan is faster")
    assert "another plan is faster" in run("check").stderr
    for output_format in ("html", "markdown"):
        assert "another plan is faster" in run("check", "--format", output_format).stdout
    assert "another plan" not in run("check", "-q").stderr + run("check", "--no-cache").stderr
    file.write_text(f"{PIPELINE}# changed\n")
    assert "another plan" not in run("check").stderr
    file.write_text(PIPELINE)
    keep_suggestion(folder, step, sources, None)
    assert "another plan" not in run("check").stderr


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


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("from flax import nnx\n# linen had another way\n", "nnx.remat(Layer.__call__)(layer, x)"),
        ("import equinox as eqx\n", "eqx.filter_checkpoint(layer)(x)"),
        ("from flax import linen as nn, nnx\n", "jax.checkpoint(layer)(x)"),
        ("import jax\n\nx, _ = jax.lax.scan(layer, x, layers)\n", "jax.lax.scan(jax.checkpoint(layer), ...)"),
        ("import jax\n\nscanned = True  # not nnx\n", "jax.checkpoint(layer)(x)"),
    ],
)
def test_the_line_that_saves_memory_is_of_the_library_imported(text: str, line: str) -> None:
    assert again_line(text) == line
