"""A formatted program stays formatted, and passes ruff's checks if it did: what is written is as ruff would have it."""

import subprocess
from pathlib import Path

import pytest
from fixture_files import FIXTURES, hint_cases, source_files

from mmrewrite.codemod.registry import Registry
from mmrewrite.engine.rewrite import rewrite_project, rewrite_source
from mmrewrite.engine.settings import HintSettings
from mmrewrite.source.line_breaking import fit

ruff = pytest.importorskip("ruff")

WIDTH = 100
# An expression around what is written, that needs brackets of its own or fewer than it had, names between quotes of one
# kind, and blank lines where a hint stood alone.
OTHERWISE = {
    "constrain_call/names_in_heads",
    "constrain_call/several_in_one_statement",
    "declare_mesh/rules_of_the_program",
    "gather_value/parameters_and_statistics",
    "microbatch_grad/decorated_loss",
    "place_callee/plain_call",
    "register_by_name/mesh_below_and_names_taken",
    "register_by_name/mesh_in_a_block",
}


def unformatted(folder: Path) -> set[str]:
    """The names of the files that ruff would lay out in another way."""
    command = [ruff.find_ruff_bin(), "format", "--isolated", "--no-cache", "--check", "--output-format", "concise"]
    result = subprocess.run(
        [*command, "--line-length", str(WIDTH), "."], cwd=folder, capture_output=True, text=True, check=False
    )
    assert result.returncode in (0, 1), result.stderr
    return {line.partition(".py:")[0].replace("__", "/") for line in result.stdout.splitlines() if ".py:" in line}


# A statement two lines below imports, a list of calls that grew, and helpers of the runtime that
# are imported apart from its other names, which came from MultiMesh.
IN_OTHER_ORDER = {
    "declare_mesh/a_hint_above_stays",
    "register_scope_task/no_mesh",
    "replace_gspmd_sharding/multimesh",
    "replace_multimesh_jit/auto",
    "replace_multimesh_jit/out_of_view",
    "replace_multimesh_jit/pjit",
    "replace_tree_functions/old_target",
    # The head of a new function with six annotations.
    "stage_loop/annotated_function",
}


def with_findings(folder: Path) -> set[str]:
    """The names of the files that do not pass ruff's checks of imports, errors and warnings."""
    command = [ruff.find_ruff_bin(), "check", "--isolated", "--no-cache", "--output-format", "concise"]
    result = subprocess.run(
        [*command, "--select", "I,E,W,F", "--line-length", str(WIDTH), "."],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode in (0, 1), result.stderr
    return {line.partition(".py:")[0].replace("__", "/") for line in result.stdout.splitlines() if ".py:" in line}


def test_programs_that_pass_the_checks_pass_them(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    after.mkdir()
    for folder in (folder for folder in FIXTURES.glob("*/*/*") if (folder / "after.py").exists()):
        name = f"{folder.parent.name}__{folder.name}.py"
        (before / name).write_bytes((folder / "before.py").read_bytes())
        (after / name).write_bytes((folder / "after.py").read_bytes())
    passing = {path.stem.replace("__", "/") for path in after.iterdir()} - with_findings(before)
    assert len(passing) > 100
    assert with_findings(after) & passing == IN_OTHER_ORDER


def test_formatted_programs_stay_formatted(tmp_path: Path) -> None:
    registry = Registry()
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    after.mkdir()
    for folder in (each for each in hint_cases("before.py") if each.parents[1].name == "hints"):
        name = f"{folder.parent.name}__{folder.name}.py"
        files = {"before.py": (folder / "before.py").read_bytes()}
        (result,) = rewrite_project(source_files(files), registry)
        if result.changed:
            (before / name).write_bytes(result.original)
            (after / name).write_bytes(result.result)
    changed = {path.stem.replace("__", "/") for path in after.iterdir()}
    formatted = changed - unformatted(before)
    assert len(formatted) > 100
    assert unformatted(after) & formatted == OTHERWISE


AROUND = {
    "below a bracket": (
        """y = mm.task(Block(
    4,
    name="b",
), task=t)(x)
""",
        """y = mm.task(
    Block(
        4,
        name="b",
    ),
    task=t,
)(x)
""",
    ),
    "below what follows a bracket": (
        """y = mm.task(Block(4,
                  name="b"), task=t)(x)
""",
        """y = mm.task(
    Block(4,
          name="b"),
    task=t,
)(x)
""",
    ),
    "from further to the right": (
        """y = mm.mjit(partial(
            step, model=model
        ), mesh=mesh)
""",
        """y = mm.mjit(
    partial(
        step, model=model
    ),
    mesh=mesh,
)
""",
    ),
    "an argument that had a line of its own": (
        "y = mm.microbatch(jax.grad(\n        loss), size=2)(x)\n",
        "y = mm.microbatch(\n    jax.grad(\n        loss),\n    size=2,\n)(x)\n",
    ),
    "lines that are not indented": (
        "y = mm.microbatch(jax.grad(\nloss), size=2)(x)\n",
        "y = mm.microbatch(\n    jax.grad(\n        loss),\n    size=2,\n)(x)\n",
    ),
    "several levels": (
        "y = mm.microbatch(jax.grad(make(\n            loss),\n        has_aux=True), size=2)(x)\n",
        "y = mm.microbatch(\n    jax.grad(make(\n            loss),\n        has_aux=True),\n    size=2,\n)(x)\n",
    ),
    "parameters": (
        f"def loss(params, {', '.join(f'{each * 20}={each}[1, 2]' for each in 'abc')}) -> int: pass\n",
        f"def loss(\n    params, {', '.join(f'{each * 20}={each}[1, 2]' for each in 'abc')}\n) -> int: pass\n",
    ),
    "parameters of several lines": (
        f"def loss(params, *, {', '.join(f'{each * 20}={each}[1, 2]' for each in 'abcd')}): pass\n",
        "def loss(\n    params,\n    *,\n"
        f"{''.join(f'    {each * 20}={each}[1, 2],{chr(10)}' for each in 'abcd')}): pass\n",
    ),
    "parameters that fit without what stands for the block": (f"def loss({'a' * 88}): pass\n",) * 2,
    "text over lines": ('y = mm.task(make("""a\nb"""), task=t)(x)\n',) * 2,
    "no call of ours": ("y = make(Block(\n    4,\n), task=t)(x)\n",) * 2,
}


@pytest.mark.quick
@pytest.mark.parametrize(("hugged", "expected"), AROUND.values(), ids=AROUND)
def test_a_call_around_several_lines_has_a_line_for_each_argument(hugged: str, expected: str) -> None:
    assert fit(hugged, "mm", WIDTH, "    ", "\n") == expected
    assert fit(expected, "mm", WIDTH, "    ", "\n") == expected
    assert fit(hugged.replace("\n", "\r\n"), "mm", WIDTH, "    ", "\r\n") == expected.replace("\n", "\r\n")


PROGRAM = """{head}
import jax.numpy as jnp

# mm: mesh(stage=2)


@jax.jit  # mm: mjit
def step(params, batch):
    # mm: microbatch(size=2, argnum=1)
    return value_and_grad(lambda p, b: jnp.mean(b @ p))(params, batch)


{more}
"""


@pytest.mark.parametrize(
    ("head", "more", "other", "stays"),
    [
        ("import jax", "", "", False),
        ("import jax", '"""Runs on jax."""', "", False),
        ("import jax", "", "import jax\nimport main\njax.devices()", False),
        ("import jax", "jax.devices()", "", True),
        ("import jax", "__all__ = ['jax']", "", True),
        ("import jax", "eval('jax.devices()')", "", True),
        ("import jax  # noqa: F401", "", "", True),
        ("import jax", "", "from main import jax", True),
        ("import jax", "", "from main import *", True),
        ("import jax", "", "import main\nmain.jax.devices()", True),
    ],
)
def test_an_import_goes_once_nothing_reads_it(head: str, more: str, other: str, *, stays: bool) -> None:
    text = PROGRAM.format(head=f"from jax import value_and_grad\n{head}", more=more)
    files = {"main.py": text.encode(), "other.py": other.encode()}
    result = next(each for each in rewrite_project(source_files(files), Registry()) if each.path == "main.py")
    assert result.failure is None
    assert "mjit" in result.result.decode()
    assert (head in result.result.decode().splitlines()) is stays
    assert "from jax import value_and_grad" in result.result.decode()


def test_a_module_in_googles_style_stays_in_it() -> None:
    """Two spaces for blocks and four in brackets; imports of both kinds in the order of what they import."""
    before = """\
from absl import logging
import flax.linen as nn
import jax
from jax import lax
import jax.numpy as jnp
import numpy as np
from orbax import checkpoint


# mm: mesh(stage=2, data=2); axes(batch="data", hidden=None)
def stepped(params, x):
  for layer in params:  # mm: stages
    x = layer(x)
  return x


# mm: mjit
step = jax.jit(
    stepped,
    donate_argnums=(0,),
    static_argnames=("a_setting_of_the_step_with_a_long_name", "another_one"),
)
"""
    after = rewrite_source(before, Registry(), settings=HintSettings(width=80)).result.decode()
    assert "import jax.numpy as jnp\nimport mmruntime as mm\nimport numpy as np\n" in after
    assert '\nmesh = mm.MultiMesh(\n    axis_sizes=(2, 2),\n    axis_names=("stage", "data"),\n' in after
    assert "\nstep = mm.mjit(\n    stepped,\n    mesh=mesh,\n    donate_argnums=(0,),\n" in after


def test_an_option_of_several_lines_keeps_its_columns_in_a_block() -> None:
    before = """\
import functools

import jax


# mm: mesh(stage=2)
def stepped(params, x, shift):
    for layer in params:  # mm: stages
        x = layer(x)
    return x + shift


class Trainer:
    def __init__(self, shift, layouts):
        # mm: mjit
        self.step = jax.jit(
            functools.partial(
                stepped,
                shift=shift,
            ),
            in_shardings=(
                layouts,
                None,
            ),
        )
"""
    after = rewrite_source(before, Registry()).result.decode()
    assert after.endswith(before[before.index("            in_shardings=(") :])
