"""`validation/score_cases.py`: cases from a wheel, hinted at the lines that are named."""

import tomllib
import zipfile
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from scripts import load_script

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("validation/score_cases.py")


def test_a_case_is_a_module_with_hints_and_a_step(script: ModuleType, tmp_path: Path) -> None:
    model = replace(script.MODELS["mistral"], release="pack==1.2", module="pack/models.py")
    with zipfile.ZipFile(tmp_path / "pack-1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr("pack/models.py", f"class A:\n    def f(self, x):\n{script.LOOP}\n            x = layer(x)\n")
    script.build(model, tmp_path / "case", tmp_path)
    assert f"\n{script.LOOP}  # mm: stages\n" in (tmp_path / "case" / "model.py").read_text()
    compile((tmp_path / "case" / "train.py").read_text(), "train.py", "exec")
    told = tomllib.loads((tmp_path / "case" / "score.toml").read_text())
    assert (told["expect"], told["refusal"], told["stages"]) == ("raises", model.raises, [0, 1, 2, 3])
    with pytest.raises(ValueError, match="has no line 'while True:'"):
        script.build(replace(model, hints={"while True:": ""}), tmp_path / "case", tmp_path)
    with pytest.raises(FileNotFoundError, match="no wheel of pack==3"):
        script.build(replace(model, release="pack==3"), tmp_path / "case", tmp_path)
