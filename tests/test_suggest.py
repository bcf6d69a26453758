"""Plans of a step, compared by the model of their costs."""

import hashlib
import time
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from command import PIPELINE, put, run

from mmrewrite.files.cache_folder import VARIABLE, cache_folder
from mmrewrite.suggest.calibration import calibrated, sizes_to_time
from mmrewrite.suggest.comparison import Suggested, Wanted, model_axis_of
from mmrewrite.suggest.costs import Layer, Line, TensorCut
from mmrewrite.suggest.devices import Accelerator, find_device, read_cluster
from mmrewrite.suggest.history import KIND, keep_suggestion
from mmrewrite.suggest.model import CostModel, PlanChoice
from mmrewrite.suggest.output import as_text
from mmrewrite.suggest.savings import RECOMPUTE, Saving, again_line, recomputed, savings
from mmrewrite.suggest.search import SAME, FixedChoices, best_plain, find_plans, named
from mmruntime import schedules

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
    seconds, memory = model.plain(4, 1, model=2)
    assert memory < model.plain(4, 1)[1]
    assert seconds < model.plain(4, 1)[0]


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


def test_an_order_is_searched_for_the_winner_and_taken_where_it_is_faster_by_enough() -> None:
    model = CostModel(_layers(8), 16, find_device("h100"), donates=True)
    named_best = find_plans(model, 8, 1, data=False).best
    searched = find_plans(model, 8, 1, data=False, fixed=FixedChoices(schedule="auto")).best
    assert named_best is not None
    assert searched is not None
    assert (searched.choice.schedule, searched.choice.stages) == ("auto", named_best.choice.stages)
    assert searched.choice.memory_bytes is not None
    assert named_best.seconds * (1 - SAME) < searched.seconds < named_best.seconds, "not enough"
    assert named_best.choice.schedule in schedules.names()


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


def _timed(device: Accelerator, rows: tuple[int, ...], off: float = 1.0) -> dict[str, object]:
    """What a device would be measured to take for a layer, by the figures of its record."""
    model = CostModel(_layers(8), 64, device, donates=True)
    seconds = [off * sum(model.passes(each, 1)[3]) for each in rows]
    sizes = [
        {"rows": each, "forward": took / 3, "backward": 2 * took / 3} for each, took in zip(rows, seconds, strict=True)
    ]
    platform = "cpu" if device.name == "cpu" else "gpu"
    return {"kind": "any", "platform": platform, "launch": 50e-6, "layer": 3, "sizes": sizes}


@pytest.mark.parametrize("changed", [{}, {"flops": 200e12}, {"bandwidth": 1e12}, {"flops": 100e12, "bandwidth": 9e12}])
def test_a_layer_that_was_timed_says_how_fast_products_and_memory_are(changed: dict[str, float]) -> None:
    published = find_device("h100")
    here = replace(published.with_given(changed), overlaps=False)
    found, calibration = calibrated(_layers(8), 64, published, _timed(here, (1, 16)))
    assert calibration.left < 0.001
    assert calibration.is_used
    assert found.speed("bfloat16") == pytest.approx(here.speed("bfloat16"), rel=0.01)
    assert found.bandwidth == pytest.approx(here.bandwidth, rel=0.01)
    # The record is a file for --cluster.
    again, _ = read_cluster(tomllib.loads(found.as_toml()))
    assert again.speed("float32") == pytest.approx(found.speed("float32"), rel=0.01)
    assert (again.overlaps, again.launch) == (False, 50e-6)
    assert again.bandwidth == pytest.approx(found.bandwidth, rel=0.01)


def test_times_that_no_figures_give_are_said_to_be_off() -> None:
    times = _timed(find_device("h100"), (1, 16))
    times["sizes"] = [{"rows": rows, "forward": took, "backward": took} for rows, took in ((1, 0.1), (16, 0.05))]
    _, calibration = calibrated(_layers(8), 64, find_device("h100"), times)
    assert calibration.left > 0.2


def test_what_was_timed_on_a_cpu_says_nothing_of_an_accelerator() -> None:
    published = find_device("h100")
    found, calibration = calibrated(_layers(8), 64, published, _timed(find_device("cpu"), (1, 16), off=2.0))
    assert found == published
    assert not calibration.is_used
    assert calibration.record == "cpu"
    assert calibration.error == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("batch", "devices", "counts"), [(256, 8, [32, 2]), (64, 4, [16, 1]), (6, 64, [6, 1]), (7, 2, [7, 1])]
)
def test_two_sizes_of_microbatches_are_timed(batch: int, devices: int, counts: list[int]) -> None:
    assert sizes_to_time(batch, devices) == counts


def test_parameters_may_be_cut_within_hosts_alone() -> None:
    layers, device = _layers(24, 2048), find_device("h100")
    slow = CostModel(layers, 256, device.with_given({"far": 1e9}), donates=True)
    (whole, hybrid), sizes = zip(*(slow.plain(64, 4, shards=shards) for shards in (64, 8)), strict=True)
    assert hybrid < whole / 3, "parameters are gathered within hosts, and gradients summed between them once"
    assert sizes[0] < sizes[1], "each host has all of the state"
    summed = slow.summed(sum(layer.gradients for layer in layers) / 8, 8, 64)
    assert hybrid > summed
    found = best_plain(slow, 64)
    assert found is not None
    assert (found.kind, found.data, found.shards) == ("fsdp", 64, 8)
    alone = best_plain(CostModel(layers, 256, device.with_given({"host": 64}), donates=True), 64)
    assert alone is not None
    assert alone.shards in (1, 64), "one link has no groups within"


@pytest.mark.parametrize(
    "name", ["a100-40", "a100-80", "h100", "h200", "b200", "l40s", "mi300x", "v4", "v5e", "v5p", "v6e", "cpu"]
)
def test_a_record_has_figures_and_their_sources(name: str) -> None:
    device = find_device(name)
    assert device.source
    assert device.network
    assert min(device.speed(each) for each in ("bfloat16", "float32")) > 0
    assert device.memory > 2**30
    assert device.link(2).bandwidth >= device.link(4096).bandwidth > 0


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
    ("fixed", "advice"),
    [
        ({"stages": 3, "data": 2}, "6 does not divide 8; give --devices 6, or other sizes"),
        ({"stages": 9}, "give from 2 to 6 stages"),
        ({"stages": 1}, "give from 2 to 6 stages"),
        ({"stages": 2, "data": 4, "count": 3}, "give a number of devices and a --batch that divide each other"),
    ],
)
def test_sizes_that_no_mesh_has_are_told_with_what_to_give(fixed: dict[str, int], advice: str) -> None:
    choices, device = FixedChoices(**fixed), find_device("h100")
    found = find_plans(CostModel(_layers(6, 1024), 8, device, donates=True), 8, 1, data=True, fixed=choices)
    assert found.best is None
    wanted = Wanted("m:step", "m:example", device, 8, fixed=choices)
    text = as_text(Suggested(wanted, 8, 8, 6, "stage", "data", "batch", {}, {}, None, 8, found))
    assert f"; {advice}." in text


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
