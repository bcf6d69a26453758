"""The mesh of a step, in its module or in another one."""

from __future__ import annotations

import pytest
from hinted_sites import refusal_of, site_of

from mmrewrite.analysis.meshes.step_mesh import mesh_expression
from mmrewrite.codemod.registry import Registry
from mmrewrite.engine.rewrite import rewrite_project
from mmrewrite.project.facts import SourceFile

pytestmark = pytest.mark.quick

STEP = "step = jax.jit(f)  # mm: mjit\n"
MESH = "mesh = mm.MultiMesh(axis_names=('stage',), axis_sizes=(2,))\n"
HEAD = "import jax\nimport mmruntime as mm\n"


@pytest.mark.parametrize(
    ("text", "others", "expected"),
    [
        pytest.param(HEAD + MESH + STEP, {}, "mesh", id="above, in the module"),
        pytest.param(f"{HEAD}def run():\n    {MESH}    {STEP}", {}, "mesh", id="in the function of the step"),
        pytest.param(
            f"{HEAD}{MESH}def run():\n    {MESH.replace('mesh =', 'inner =')}    {STEP}",
            {},
            "inner",
            id="the nearest scope",
        ),
        pytest.param(
            HEAD + "from devices import mesh\n" + STEP, {"devices": HEAD + MESH}, "mesh", id="imported already"
        ),
        pytest.param(f"{HEAD}{MESH}def run(mesh):\n    {STEP}", {}, "mesh_1", id="hidden by a parameter"),
        pytest.param(HEAD + "import devices\n" + STEP, {"devices": HEAD + MESH}, "devices.mesh", id="by its module"),
        pytest.param(HEAD + "import devices as d\n" + STEP, {"devices": HEAD + MESH}, "d.mesh", id="by an alias"),
        pytest.param(HEAD + STEP, {"devices": HEAD + MESH}, "mesh", id="only in another module, to be imported"),
    ],
)
def test_the_mesh_as_source_text(text: str, others: dict[str, str], expected: str) -> None:
    assert mesh_expression(site_of(text, **others)) == expected


@pytest.mark.parametrize(
    ("text", "others", "reason"),
    [
        pytest.param(
            HEAD + STEP,
            {},
            "no mesh for this step: write `# mm: mesh(stage=4)` with your axes above it, or in the module that owns "
            "the training loop",
            id="none",
        ),
        pytest.param(
            HEAD + STEP + MESH,
            {},
            "the mesh is made on line 4, below this step; move its hint up",
            id="below the step",
        ),
        pytest.param(
            f"{HEAD}{MESH}{MESH.replace('mesh =', 'other =')}{STEP}",
            {},
            "more than one mesh could be meant: `mesh` (line 3), `other` (line 4); keep one per module",
            id="two in the module",
        ),
        pytest.param(
            f"{HEAD}def make():\n    {MESH}{STEP}",
            {},
            "the mesh of line 4 is local to a function that this step is not part of; write the `mesh(...)` hint at "
            "module level",
            id="local to another function",
        ),
        pytest.param(
            HEAD + STEP,
            {"one": HEAD + MESH, "two": HEAD + MESH},
            "more than one mesh could be meant (one.py:3, two.py:3); import the one to use in this module",
            id="two in other modules",
        ),
        pytest.param(
            HEAD + STEP,
            {"devices": f"import module\n{HEAD}{MESH}"},
            "the mesh is in devices.py, which imports this module, so this module cannot import it; move the "
            "`mesh(...)` hint to a module that both import, or here",
            id="a circular import",
        ),
    ],
)
def test_refusals(text: str, others: dict[str, str], reason: str) -> None:
    assert refusal_of(lambda: mesh_expression(site_of(text, **others)))[1] == reason


HINTED = (
    "import jax\n\n# mm: mesh(stage=2)\n\n\n@jax.jit  # mm: mjit\ndef step(x):\n    return f(x)  # mm: task(stage=0)\n"
)


@pytest.mark.parametrize(
    ("name", "text", "is_other"),
    [
        pytest.param("mmruntime", "RATE = 0.1\n", True, id="another module of that name"),
        pytest.param("runtime_settings", "RATE = 0.1\n", False, id="renamed, as is advised"),
        pytest.param("mmruntime", "from mmruntime._core import MultiMesh as MultiMesh\n", False, id="the library"),
    ],
)
def test_a_module_with_the_name_of_the_library_is_refused(name: str, text: str, is_other: bool) -> None:
    files = [SourceFile("train.py", HINTED.encode(), "train"), SourceFile(f"{name}.py", text.encode(), name)]
    found = [each.reason for each in rewrite_project(files, Registry())[0].refusals if not each.is_consequence]
    told = [
        "the mesh of this step is that of line 7, which stays as it is; see the message about it",
        "this project has a module `mmruntime` of its own, which would be imported in place of the library that "
        "rewritten programs need; rename it",
    ]
    assert found == (told if is_other else [])
