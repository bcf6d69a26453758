"""The rewritten example against the microbatched one-device run, in processes of their own."""

import importlib.util
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

# On its default Python, `.ci/run` trains by `compare.py` in single precision: AdamW, dropout, two layers to a stage.
pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "gpt"
STAGES = 4
LAYERS = 4
SIZES = [f"--num-layers={LAYERS}", "--width=32", "--context=16", "--batch-size=16"]


def load_compare():
    spec = importlib.util.spec_from_file_location("gpt_compare", EXAMPLE / "compare.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


compare = load_compare()


@pytest.fixture(scope="module", autouse=True)
def settings_of_the_runs():
    with pytest.MonkeyPatch.context() as patch:
        # Optax and Flax are not written for strict promotion.
        patch.setenv("JAX_NUMPY_DTYPE_PROMOTION", "standard")
        yield


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("built")
    compare.mmrewrite("build", str(EXAMPLE), "--out", str(out))
    return compare.find_script(out, "record.py")


@pytest.fixture(scope="module")
def runs(built):
    """Both runs with the same options, the reference first; done once for each set of options."""
    done = {}

    def run(*options: str):
        if options not in done:
            arguments = [*SIZES, f"--text={EXAMPLE / 'gospels.txt'}", *options]
            with ThreadPoolExecutor() as pool:
                one = pool.submit(compare.run, EXAMPLE / "record.py", ["--microbatched", *arguments], devices=1)
                many = pool.submit(compare.run, built, arguments, devices=8)
            done[options] = one.result(), many.result()
        return done[options]

    return run


DOUBLE = ("--dtype=float64", "--steps=10", "--dropout=0.1")


@pytest.fixture
def both(runs):
    """Both runs in double precision."""
    return runs(*DOUBLE)


@pytest.mark.parametrize(
    ("options", "tolerance"),
    [
        pytest.param(DOUBLE, 1e-9, id="float64"),
        *(
            pytest.param((f"--dtype={dtype}", "--steps=10", *others), tolerance, id=name, marks=pytest.mark.slow)
            for name, dtype, tolerance, *others in (
                ("float64_two_layers_to_a_stage", "float64", 1e-9, "--dropout=0.1", "--num-layers=8"),
                ("float32_sgd_no_dropout", "float32", 1e-6, "--dropout=0", "--optimizer=sgd", "--learning-rate=0.1"),
                ("float32_no_dropout", "float32", 1e-4, "--dropout=0"),
                ("float64_no_dropout", "float64", 1e-9, "--dropout=0"),
                ("float32", "float32", 1e-4, "--dropout=0.1"),
                ("float32_sgd", "float32", 1e-6, "--dropout=0.1", "--optimizer=sgd", "--learning-rate=0.1"),
            )
        ),
    ],
)
def test_ten_steps_are_those_of_one_device(runs, options, tolerance) -> None:
    one, many = runs(*options)
    differences = compare.largest_differences(one, many)
    assert differences["loss"][0] <= tolerance, differences
    assert differences["params"][0] <= tolerance, differences
    assert one.losses[-1] < one.losses[0]


@pytest.mark.slow
def test_slices_of_the_sequence_give_the_steps_of_one_device(both, tmp_path) -> None:
    hinted = tmp_path / "gpt"
    shutil.copytree(EXAMPLE, hinted)
    text = (hinted / "train.py").read_text(encoding="utf-8")
    hint = 'microbatch(size=4, argnum=1, rng=2, schedule="1f1b"'
    assert hint in text
    (hinted / "train.py").write_text(text.replace(hint, f"{hint}, slices=2"), encoding="utf-8")
    compare.mmrewrite("build", str(hinted), "--out", str(tmp_path / "built"))
    script = compare.find_script(tmp_path / "built", "record.py")
    sliced = compare.run(script, [*SIZES, f"--text={EXAMPLE / 'gospels.txt'}", *DOUBLE], devices=8)
    assert "each in 2 slices" in sliced.notes["explain"]
    differences = compare.largest_differences(both[0], sliced)
    assert differences["loss"][0] <= 1e-9, differences
    assert differences["params"][0] <= 1e-9, differences


def test_dropout_is_on_and_changes_the_losses(both) -> None:
    """The first loss, which the optimizer has no part in."""
    with_dropout, _ = both
    arguments = [*SIZES, f"--text={EXAMPLE / 'gospels.txt'}", *DOUBLE, "--dropout=0", "--steps=1"]
    without = compare.run(EXAMPLE / "record.py", ["--microbatched", *arguments], devices=1)
    assert abs(with_dropout.losses[0] - without.losses[0]) > 1e-3


def test_parameter_paths_are_those_of_plain_flax(both) -> None:
    one, many = both
    assert one.arrays.keys() == many.arrays.keys()
    block = {
        "attention/out/bias",
        "attention/out/kernel",
        "attention/qkv/kernel",
        "mlp/narrow/bias",
        "mlp/narrow/kernel",
        "mlp/wide/bias",
        "mlp/wide/kernel",
        "norm_1/bias",
        "norm_1/scale",
        "norm_2/bias",
        "norm_2/scale",
    }
    expected = {f"params/blocks_{i}/{name}" for i in range(LAYERS) for name in block}
    expected |= {"params/positions", "params/tokens/embedding", "params/norm/bias", "params/norm/scale"}
    assert {name for name in many.arrays if name.startswith("params/")} == expected


def submesh(stage: int) -> list[int]:
    return [2 * stage, 2 * stage + 1]


def test_every_array_lives_on_the_submesh_of_its_stage(both) -> None:
    _, many = both
    homes = {f"blocks_{i}": submesh(i * STAGES // LAYERS) for i in range(LAYERS)}
    homes |= {"positions": submesh(0), "norm": submesh(STAGES - 1)}
    seen = dict.fromkeys(homes, 0)
    for name, where in many.notes["placement"].items():
        for part in homes.keys() & set(name.split("/")):
            assert where["devices"] == homes[part], name
            seen[part] += 1
    # Each parameter has two moments beside it.
    assert seen == {part: 3 * {"positions": 1, "norm": 2}.get(part, 11) for part in homes}


def test_the_tied_embedding_and_its_optimizer_state_have_one_home(both) -> None:
    _, many = both
    found = [where["devices"] for name, where in many.notes["placement"].items() if "tokens" in name.split("/")]
    assert found in ([submesh(0)] * 3, [submesh(STAGES - 1)] * 3)


def test_attention_heads_and_the_mlp_are_split_over_the_model_axis(both) -> None:
    _, many = both
    for layer in range(LAYERS):
        for name in ("attention/qkv/kernel", "mlp/wide/kernel"):
            where = many.notes["placement"][f"params/blocks_{layer}/{name}"]
            rows, columns = where["shape"]
            assert where["shard"] == [rows, columns // 2], name


def test_explain_names_every_submesh(both) -> None:
    _, many = both
    assert many.notes["devices"] == 8
    assert many.notes["explain"].count("\n") >= STAGES


def test_compare_prints_what_a_person_wants_to_see(both, tmp_path, capsys, monkeypatch) -> None:
    """The runs are those above, with these same arguments; `.ci/run` has `compare.py` make its own."""
    one, many = both
    asked = []

    def run(script, arguments, *, devices):
        asked.append((script.name, devices, sorted(arguments)))
        return one if devices == 1 else many

    monkeypatch.setattr(compare, "run", run)
    monkeypatch.setattr(
        sys, "argv", ["compare.py", "--steps=10", "--float64", f"--out={tmp_path}", *SIZES, "--dropout=0.1"]
    )
    status = compare.main()
    printed = capsys.readouterr().out
    assert status == 0, printed
    for part in ("+import mmruntime as mm", f"blocks_{LAYERS - 1}", "The two runs agree."):
        assert part in printed
    arguments = [*SIZES, f"--text={EXAMPLE / 'gospels.txt'}", *DOUBLE]
    assert asked == [
        ("record.py", 1, sorted(["--microbatched", *arguments])),
        ("record.py", 8, sorted(arguments)),
    ]
    assert compare.find_script(tmp_path, "record.py").is_file()


def test_compare_notices_a_difference(both) -> None:
    one, _ = both
    name = "params/positions"
    changed = compare.Run(one.losses, {**one.arrays, name: one.arrays[name] + 1e-6}, one.notes, 0.0)
    difference, where = compare.largest_differences(one, changed)["params"]
    assert where == name
    assert difference == pytest.approx(1e-6 / np.abs(one.arrays[name]).max())


def test_compare_notices_what_is_not_finite(both) -> None:
    one, _ = both
    name = "params/positions"
    for bad in (np.nan, np.inf):
        changed = compare.Run(one.losses, {**one.arrays, name: one.arrays[name] * bad}, one.notes, 0.0)
        assert compare.largest_differences(one, changed)["params"] == (np.inf, name)
