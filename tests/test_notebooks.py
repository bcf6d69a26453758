"""Hints in notebooks: read and rewritten as in modules, in place in the file's JSON, and reported by cell."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mmrewrite.cli.commands import cli

IMPORTS = "%matplotlib inline\nimport jax\nimport jax.numpy as jnp\n"
MESH = "# mm: mesh(stage=2)\nlayers = 4"
MODEL = (
    "def model(params, x):\n    for w in params:  # mm: stages\n        x = jnp.tanh(x @ w)\n    return jnp.mean(x)\n"
)
STEP = (
    "@jax.jit  # mm: mjit\ndef step(params, x):\n"
    '    return jax.grad(model)(params, x)  # mm: microbatch(count=2, reduce="mean")'
)
TIMED = "%%time\n!nvidia-smi\nstep(params, x)\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


def put(*cells: str, path: str = "train.ipynb", prose: str = "# mm: stages") -> None:
    """A notebook with a cell of prose, in which nothing is a hint, and some of code."""
    code = {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": []}
    document = {
        "cells": [
            {"cell_type": "markdown", "metadata": {}, "source": [prose]},
            *({**code, "source": cell.splitlines(keepends=True)} for cell in cells),
        ],
        "metadata": {"x": 1.0},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    Path(path).write_text(json.dumps(document, indent=2) + "\n")


def cells(path: str = "train.ipynb") -> list[str]:
    document = json.loads(Path(path).read_text())
    return ["".join(cell["source"]) for cell in document["cells"] if cell["cell_type"] == "code"]


def test_a_program_in_a_notebook() -> None:
    put(IMPORTS, MESH, MODEL, STEP, TIMED)
    before = Path("train.ipynb").read_text().splitlines()
    assert run("check").exit_code == 1
    result = run("apply")
    assert (result.exit_code, *result.stderr.splitlines()) == (
        0,
        "1 file changed",
        "after a step parameters are on several devices; code outside of steps reads a copy: mm.gather(params)",
        "with fewer devices than the mesh has, MMRUNTIME_ONE_DEVICE_FALLBACK=1 runs it on one",
    )
    assert cells() == [
        "%matplotlib inline\nimport functools\n\nimport jax\nimport jax.numpy as jnp\nimport mmruntime as mm\n",
        'mesh = mm.MultiMesh(axis_sizes=(2,), axis_names=("stage",))\nlayers = 4',
        "def model(params, x):\n    def layer(x, w):\n        x = jnp.tanh(x @ w)\n        return x\n\n"
        "    for i, w in enumerate(params):\n"
        '        x = mm.task(layer, task=mm.stage(i, len(params), axis="stage"))(x, w)\n    return jnp.mean(x)\n',
        "@functools.partial(mm.mjit, mesh=mesh)\ndef step(params, x):\n"
        '    return mm.microbatch(jax.grad(model), dim=0, count=2, argnum=1, reduce="mean")(params, x)',
        TIMED,
    ]
    after = Path("train.ipynb").read_text().splitlines()
    assert [line for line in before if "source" not in line and "mm:" not in line and '    "' not in line] == [
        line for line in after if "source" not in line and "mm:" not in line and '    "' not in line
    ]
    assert (run("check").exit_code, run("diff").stdout) == (0, "")


def test_the_result_is_what_a_module_becomes() -> None:
    code = [IMPORTS.removeprefix("%matplotlib inline\n"), MESH, MODEL, STEP]
    put(*code)
    Path("train.py").write_text("\n".join(code) + "\n")
    assert run("apply").exit_code == 0
    kept = [line for line in Path("train.py").read_text().splitlines() if line.strip()]
    assert [line for cell in cells() for line in cell.splitlines() if line.strip()] == kept


def test_only_changed_cells_are_written() -> None:
    put(IMPORTS, "x = 'a\\u00e4b'\n", MESH, STEP)
    text = Path("train.ipynb").read_text().replace('"x": 1.0', '"x":   1.00')
    Path("train.ipynb").write_text(text)
    assert run("apply").exit_code == 0
    assert '"x":   1.00' in Path("train.ipynb").read_text()
    assert "\"x = 'a\\\\u00e4b'\\n\"" in Path("train.ipynb").read_text()


def test_lines_of_a_cell_that_stay_are_no_change() -> None:
    put(IMPORTS, f"{MESH}\n", MODEL, STEP)
    patch = run("diff", "-q").stdout
    assert [line[1:].strip() for line in patch.splitlines() if line.startswith("-    ")] == [
        json.dumps(line) + "," * (not is_last)
        for line, is_last in (
            ("import jax.numpy as jnp\n", True),
            ("# mm: mesh(stage=2)\n", False),
            ("    for w in params:  # mm: stages\n", False),
            ("@jax.jit  # mm: mjit\n", False),
            ('    return jax.grad(model)(params, x)  # mm: microbatch(count=2, reduce="mean")', True),
        )
    ]
    page = run("diff", "--format", "markdown").stdout
    reasons = [line for line in page.splitlines() if "because of" in line or line.startswith("- imports")]
    assert [line.partition("(cell")[0] for line in reasons] == [
        "- imports for `compile_for_mesh`, `microbatch_grad`, `stage_loop`, `declare_mesh`",
        "- `declare_mesh`, because of line 1: `mesh(stage=2) ",
        "- `stage_loop`, because of line 2: `stages ",
        "- `compile_for_mesh`, because of line 1: `mjit ",
        '- `microbatch_grad`, because of line 3: `microbatch(count=2, reduce="mean") ',
    ]


def test_lines_in_any_layout_of_the_file() -> None:
    put(f"import jax\nimport jax.numpy as jnp\n\n{MESH}", MODEL, STEP)
    text = Path("train.ipynb").read_text()
    # All in one line of the file, or some lines in one, or further apart.
    layouts = [text, json.dumps(json.loads(text)), *(text.replace('",\n', f'",{gap}', 9) for gap in (" ", "   \n\n  "))]
    found = []
    for layout in layouts:
        assert json.loads(layout) == json.loads(text)
        Path("train.ipynb").write_text(layout)
        assert run("apply", "-q").exit_code == 0
        found.append(cells())
    assert "import mmruntime as mm" in found[0][0]
    assert found == [found[0]] * 4


def test_mistakes_and_refusals_name_the_cell() -> None:
    put(IMPORTS, MESH, STEP.replace("mm: mjit", "MM: mjit"))
    result = run("diff")
    assert result.exit_code == 2
    first, line, carets, *_ = result.stderr.splitlines()
    assert first == "train.ipynb, cell 4:1:11: a hint begins with `# mm:` and a space; write `# mm: mjit`"
    assert (line, carets) == ("  @jax.jit  # MM: mjit", "            ^^^^^")
    put(IMPORTS, MESH, "y = 1  # mm: axes(a='stage')", "# mm: mesh(stage=4)\nx = 2")
    assert (
        "train.ipynb, cell 5:1:7: a second `mesh(...)`, and steps could not tell which of the two is theirs; the first "
        "is on line 1 of cell 3."
    ) in run("diff").stderr
    put(IMPORTS, MESH, STEP.replace('reduce="mean"', 'reduce="mean", argnum=i'), "x = 1  # mm: task(stage=0)")
    assert "train.ipynb, cell 5:1:" in run("diff", "-v").stderr


def test_hints_beside_python() -> None:
    put(IMPORTS, MESH, STEP, "%%bash\n# mm: stages\nls\n")
    result = run("diff", "-v")
    assert "cell 5:2:1: `stages` left alone: in a cell that its magic gives to another language" in result.stderr
    assert result.exit_code == 0
    for cell in ("x = = 1  # mm: task(stage=0)", "!ls  # mm: task(stage=0)"):
        put(IMPORTS, MESH, STEP, cell)
        result = run("apply")
        assert result.exit_code == 2
        assert "train.ipynb, cell 5:1:" in result.stderr
        assert "IPython code, or a cell that is not Python, is not rewritten" in result.stderr
        assert "# mm: mjit" in cells()[2]


def test_no_module_imports_a_mesh_from_a_notebook() -> None:
    put(IMPORTS, MESH)
    Path("model.py").write_text("import jax\n\n\n@jax.jit  # mm: mjit\ndef f(x):\n    return x\n")
    assert "which this module cannot import; move the `mesh(...)` hint" in run("diff").stderr
    assert "ipynb import" not in run("diff").stdout


def test_a_notebook_may_import_from_modules() -> None:
    put("import jax\nfrom model import encode\n", MESH, "step = jax.jit(encode)  # mm: mjit")
    Path("model.py").write_text("# mm: task(stage=0)\ndef encode(x):\n    return x\n")
    assert "cell 2:2:1: this leads to model.py" in run("diff", "train.ipynb").stderr
    assert run("apply").exit_code == 0
    assert cells()[2] == "step = mm.mjit(encode, mesh=mesh)"


def test_files_that_are_no_notebooks() -> None:
    for text in ('"# mm: stages"', "# mm: stages", '{"nbformat": 3, "x": "# mm: stages"}'):
        Path("old.ipynb").write_text(text)
        result = run("diff")
        assert result.exit_code == 2
        assert "old.ipynb: not a notebook" in result.stderr
    put("x = 1\n")
    Path("old.ipynb").unlink()
    assert (run("diff").exit_code, run("diff").stderr) == (0, "")


def test_a_mirror_has_the_rewritten_notebook() -> None:
    put(IMPORTS, MESH, STEP, "step(1)  # mm: task(stage=0)")
    before = cells()
    assert run("build", "--out", "out", "train.ipynb").exit_code == 0
    assert cells() == before
    assert "mm.mjit" in cells("out/train.ipynb")[2]
    assert run("check", "--out", "out", "train.ipynb").exit_code == 0
