"""The example as the tool sees it: its hints, and what `mmrewrite` makes of them. Needs no JAX."""

import ast
import hashlib
import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples" / "gpt"
SOURCES = sorted(EXAMPLE.glob("*.py"))
PROGRAM = ("data.py", "model.py", "train.py")


def hints(source: str) -> list[str]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return [token.string for token in tokens if token.type == tokenize.COMMENT and token.string.startswith("# mm:")]


def without_hints(source: str) -> str:
    return re.sub(r"[ \t]*# mm:.*", "", source)


def mmrewrite(*arguments: object) -> str:
    command = [sys.executable, "-m", "mmrewrite", *map(str, arguments)]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the rewritten `train.py`."""
    out = tmp_path_factory.mktemp("built")
    mmrewrite("build", EXAMPLE, "--out", out)
    (script,) = out.rglob("train.py")
    return script.parent


def test_five_hint_lines_or_fewer() -> None:
    found = [hint for path in SOURCES for hint in hints(path.read_text(encoding="utf-8"))]
    # What is left alone, or copied out for an evaluation, is no part of the pipeline.
    found = [hint for hint in found if not hint.startswith(("# mm: ignore[", "# mm: gather("))]
    assert 1 <= len(found) <= 5, found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_deleting_the_hints_leaves_the_same_program(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    bare = without_hints(source)
    assert not hints(bare)
    assert ast.dump(ast.parse(bare)) == ast.dump(ast.parse(source))


@pytest.mark.parametrize("name", PROGRAM)
def test_the_program_knows_nothing_of_the_tool(name: str) -> None:
    tree = ast.parse((EXAMPLE / name).read_text(encoding="utf-8"))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not {
        name for name in imported if name.split(".")[0] in ("mmrewrite", "mmruntime", "mmcodemods", "mmmodernize")
    }


def test_the_text_is_plain_and_its_source_is_named() -> None:
    text = (EXAMPLE / "gospels.txt").read_bytes()
    assert text.isascii() and 300_000 < len(text) < 600_000
    assert "public domain" in (EXAMPLE / "SOURCE.md").read_text(encoding="utf-8")


def test_diff_writes_nothing_and_says_the_same_twice() -> None:
    def digest() -> dict[str, str]:
        return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in EXAMPLE.rglob("*.py")}

    before = digest()
    patch = mmrewrite("diff", EXAMPLE)
    assert patch == mmrewrite("diff", EXAMPLE)
    assert digest() == before
    assert set(re.findall(r"^\+\+\+ b/(?:.*/)?(\w+\.py)$", patch, re.MULTILINE)) == {"model.py", "train.py"}


def test_the_patch_applies_and_gives_what_build_writes(built: Path, tmp_path: Path) -> None:
    patch = mmrewrite("diff", EXAMPLE)
    for name in PROGRAM:
        path = tmp_path / "examples" / "gpt" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((EXAMPLE / name).read_bytes())
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=patch, text=True, check=True)
    for name in PROGRAM:
        banner, generated = (built / name).read_text(encoding="utf-8").split("\n", 1)
        assert banner.startswith("#") and name in banner
        assert generated == (tmp_path / "examples" / "gpt" / name).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        (
            "model.py",
            [
                "import mmruntime as mm",
                "for i, block in enumerate(self.blocks):",
                'x = mm.task(block, task=mm.stage(i, len(self.blocks), axis="stage"))(x, train)',
            ],
        ),
        (
            "train.py",
            ["import mmruntime as mm", "@functools.partial(mm.mjit, mesh=mesh)", "axis_sizes=(4, 2)"],
        ),
    ],
)
def test_rewritten_module_says_where_in_plain_code(built: Path, name: str, lines: list[str]) -> None:
    source = (built / name).read_text(encoding="utf-8")
    assert not hints(source)
    for line in lines:
        assert line in source


def test_results_of_microbatches_are_proved_to_be_those_of_the_batch(built: Path) -> None:
    tree = ast.parse((built / "train.py").read_text(encoding="utf-8"))
    (call,) = [
        node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "mm.microbatch"
    ]
    assert ast.unparse(call.args[0]) == "jax.value_and_grad(loss_fn, has_aux=True)"
    options = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
    assert options == {"dim": 0, "size": 4, "argnum": 1, "schedule": "1f1b", "reduce": "exact", "rng": 2}


def test_a_second_run_changes_nothing(built: Path) -> None:
    assert mmrewrite("diff", built) == ""
