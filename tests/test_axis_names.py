"""Logical axis names that a program already has: when they count, where, and as what."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from click.testing import CliRunner

from mmrewrite.cli.commands import cli
from mmrewrite.codemod.registry import Registry
from mmrewrite.engine.rewrite import rewrite_project
from mmrewrite.engine.settings import HintSettings
from mmrewrite.project.axis_names import annotated_layouts, find_rules
from mmrewrite.project.facts import Facts, SourceFile, read_facts

REGISTRY = Registry()

LAYERS = "from flax import linen as nn\n\n\ndef widen(x):\n    return nn.with_logical_constraint(x, ('batch', None))\n"
STEP = (
    "import jax\nfrom layers import widen\n\n# mm: mesh(data=2)\n\n\n@jax.jit  # mm: mjit\ndef step(x):\n"
    "    return widen(x)\n"
)


def files(**texts: str) -> list[SourceFile]:
    return [SourceFile(f"{name}.py", text.encode(), name) for name, text in texts.items()]


def facts(text: str) -> Facts:
    read = read_facts(SourceFile("m.py", text.encode(), "m"), ())
    assert isinstance(read, Facts)
    return read


@pytest.mark.parametrize("mapped", ["jax.pmap", "compat.pmap", "eqx.filter_pmap"])
def test_copies_for_each_device_are_taken_apart_behind_all_steps_of_rows(mapped: str) -> None:
    text = (
        "import jax\nimport equinox as eqx\nfrom flax import jax_utils\nfrom mmruntime import compat\n\n"
        f"# mm: mesh(data=2)\n\n\n@{mapped}  # mm: mjit\ndef step(x):\n    return x\n\n\n"
        "def first(x):\n    return jax_utils.unreplicate(step(x))\n"
    )
    (result,) = rewrite_project(files(m=text), REGISTRY)
    assert "jax.tree.map(lambda x: x[0], step(x))" in result.result.decode()


class TestWhereTheyCount:
    def test_in_modules_that_a_hinted_program_imports(self) -> None:
        results = rewrite_project(files(layers=LAYERS, step=STEP, other=LAYERS), REGISTRY)
        assert [result.changed for result in results] == [True, True, False]
        assert "mm.with_sharding_constraint(x, P('batch', None))" in results[0].result.decode()

    def test_not_without_hints_nor_without_a_mesh(self) -> None:
        plain = STEP.replace("  # mm: mjit", "").replace("# mm: mesh(data=2)", "")
        task = plain.replace("return widen(x)", "return widen(x)  # mm: task(stage=0)")
        for step in (plain, task):
            layers, _ = rewrite_project(files(layers=LAYERS, step=step), REGISTRY)
            assert not layers.changed

    def test_with_a_mesh_that_is_there_already(self) -> None:
        made = "import mmruntime as mm\n\nmesh = mm.MultiMesh(axis_sizes=(2,), axis_names=('data',))\n"
        layers, step = rewrite_project(files(layers=LAYERS, step=STEP.replace("# mm: mesh(data=2)", made)), REGISTRY)
        assert layers.changed
        assert step.changed

    def test_not_where_the_step_is_refused(self) -> None:
        layers, step = rewrite_project(files(layers=LAYERS, step=STEP.replace("@jax.jit ", "@jax.jit(**{})")), REGISTRY)
        assert step.refusals
        assert (layers.changed, layers.refusals) == (False, ())

    def test_one_that_stays_keeps_nothing_else_from_changing(self) -> None:
        text = LAYERS.replace("None))", "None), rules=())")
        layers, step = rewrite_project(files(layers=text, step=STEP), REGISTRY)
        assert (layers.changed, step.changed) == (False, True)
        assert [refusal.codemod for refusal in layers.refusals] == ["constrain_call"]

    def test_not_where_they_are_switched_off_or_ignored(self) -> None:
        for text in (
            LAYERS.replace("def", "# mm: off\ndef"),
            LAYERS.replace("None))", "None))  # mm: ignore[constrain_call]"),
            LAYERS.replace("def", "from mmrewrite import hints\n@hints.ignore('constrain_call')\ndef"),
            LAYERS.replace("def", "from mmrewrite import hints\n@hints.off()\ndef"),
        ):
            layers, step = rewrite_project(files(layers=text, step=STEP), REGISTRY)
            assert (layers.changed, step.changed) == (False, True)

    def test_not_when_the_codemod_is_not_selected(self) -> None:
        settings = HintSettings(selected=frozenset(("declare_mesh", "compile_for_mesh")))
        layers, step = rewrite_project(files(layers=LAYERS, step=STEP), REGISTRY, settings=settings)
        assert (layers.changed, step.changed) == (False, True)

    def test_results_do_not_depend_on_order(self) -> None:
        given = files(layers=LAYERS, step=STEP, other=LAYERS)
        found = {result.path: result for result in rewrite_project(given, REGISTRY)}
        assert {result.path: result for result in rewrite_project(given[::-1], REGISTRY)} == found


class TestCommandLine:
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "src").mkdir()
        (tmp_path / "src" / "layers.py").write_text(LAYERS)
        (tmp_path / "src" / "step.py").write_text(STEP)
        return tmp_path

    def changed(self, *arguments: str) -> list[str]:
        result = CliRunner().invoke(cli, ["diff", *arguments], catch_exceptions=False)
        return [line.split()[-1] for line in result.stdout.splitlines() if line.startswith("diff --git")]

    def test_imported_modules_without_hints_change(self) -> None:
        assert self.changed("src") == ["b/src/layers.py", "b/src/step.py"]

    def test_only_what_was_given_changes(self) -> None:
        assert self.changed("src/step.py") == ["b/src/step.py"]

    def test_only_what_is_not_excluded_changes(self, folder: Path) -> None:
        (folder / "pyproject.toml").write_text('[tool.mmrewrite]\nexclude = ["layers.py"]\n')
        assert self.changed("src") == ["b/src/step.py"]

    def test_apply_twice(self) -> None:
        for expected in ("2 files changed", ""):
            result = CliRunner().invoke(cli, ["apply", "src"], catch_exceptions=False)
            assert (result.exit_code, result.stderr.partition("\n")[0]) == (0, expected)

    def test_annotations_count_when_the_configuration_says_so(self, folder: Path) -> None:
        (folder / "src" / "layers.py").write_text(
            "from jaxtyping import Array, Float\n\n\n# mm: task(data=0)\n"
            'def widen(x: Float[Array, "batch width"], y: int = 0) -> Float[Array, "batch width"]:\n    return x\n'
        )
        for text, count in (("", 0), ("jaxtyping = true\n", 2)):
            (folder / "pyproject.toml").write_text(f"[tool.mmrewrite]\n{text}[tool.mmrewrite.axes]\nbatch = 'data'\n")
            result = CliRunner().invoke(cli, ["diff", "src/layers.py", "src/step.py"], catch_exceptions=False)
            assert result.stdout.count('with_sharding_constraint(x, P("batch", None))') == count
        (folder / "pyproject.toml").write_text("[tool.mmrewrite]\njaxtyping = 'yes'\n")
        result = CliRunner().invoke(cli, ["diff"])
        assert "`jaxtyping` must be true or false, not 'yes'" in result.stderr


@pytest.mark.parametrize(
    ("shape", "known", "layout"),
    [
        ("batch seq embed", (), '"batch", "seq", "embed"'),
        ("batch seq embed", ("batch", "embed"), '"batch", None, "embed"'),
        ("batch ...", (), '"batch"'),
        ("batch *rest", (), '"batch"'),
        ("... embed", (), None),
        ("*b c", (), None),
        ("#batch ?seq", (), '"batch", "seq"'),
        ("batch=4 3 _ a+b", (), '"batch", None, None, None'),
        ("3 4", (), None),
        ("", (), None),
        ("seq", ("batch",), None),
    ],
)
def test_annotations(shape: str, known: tuple[str, ...], layout: str | None) -> None:
    module = facts(f"import jaxtyping as jt\ndef f(x: jt.Float[jt.Array, {shape!r}]): pass\n")
    function = module.tree.body[1]
    assert isinstance(function, ast.FunctionDef)
    assert annotated_layouts(module, function, known, "out") == ({} if layout is None else {"x": layout})


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        (
            "logical_axis_rules = [('a', 'x'), ['b', None], ('c', ('x', 'y'))]",
            (("a", "x"), ("b", None), ("c", ("x", "y"))),
        ),
        ("class C:\n    logical_axis_rules: tuple = (('a', 'x'),)", (("a", "x"),)),
        ("from flax import linen as nn\nR = (('a', 'x'),)\nwith nn.logical_axis_rules(R): pass", (("a", "x"),)),
        ("from flax.linen import partitioning as p\nwith p.axis_rules([('a', 'x')]), m: pass", (("a", "x"),)),
        ("from flax.linen import partitioning as p\np.set_axis_rules([('a', 'x')])", (("a", "x"),)),
        ("logical_axis_rules = config.rules", None),
        ("logical_axis_rules = [('a', axis)]", None),
        ("logical_axis_rules = [('a', 'x'), *more]", None),
        ("logical_axis_rules = []", None),
        ("rules = [('a', 'x')]", None),
        ("with logical_axis_rules([('a', 'x')]): pass", None),
    ],
)
def test_rule_tables(text: str, pairs: object) -> None:
    tables = find_rules([facts(text)])
    assert [table.pairs for table in tables] == ([] if pairs is None else [pairs])
