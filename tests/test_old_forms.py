"""Every form in which Python can reach a name, with old names of each kind: none is passed over."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

import pytest
from fixture_files import source_files, told_lines

from mmmodernize.registry import ModernizeRegistry
from mmmodernize.rewrite import modernize_project
from mmmodernize.settings import ModernizeSettings

REGISTRY = ModernizeRegistry()
FORMS = {
    section.partition("\n")[0]: section.partition("\n")[2]
    for section in Path(__file__).with_name("old_forms.txt").read_text(encoding="utf-8").split("\n== ")[1:]
}
# A function that moved, a function and a class that are gone, modules, and functions of another meaning.
NAMES = (
    "jax.tree_map",
    "jax.core.ConcreteArray",
    "optax.maybe_update",
    "flax.optim",
    "jax.numpy.empty",
)


def program(form: str, name: str) -> Mapping[str, str]:
    """The modules of a form, by path; none if this Python cannot read one."""
    home, _, own = name.rpartition(".")
    package, _, rest = home.partition(".")
    names = {"{home}": home, "{own}": own, "{package}": package, "{rest}": f".{rest}" if rest else ""}
    text = FORMS[form]
    for placeholder, value in names.items():
        text = text.replace(placeholder, value)
    first, *others = text.split("\n-- ")
    imports = f"import {package}\n" if home == package else f"import {package}\nimport {home}\n"
    modules = {"main.py": imports + first, **{each.partition("\n")[0]: each.partition("\n")[2] for each in others}}
    try:
        list(map(ast.parse, modules.values()))
    except SyntaxError:
        return {}
    return modules


def is_silent(modules: Mapping[str, str]) -> bool:
    files = {path: text.encode() for path, text in modules.items()}
    results = modernize_project(
        source_files(files),
        REGISTRY,
        load=lambda path: files.get(path.removeprefix("./")),
        settings=ModernizeSettings(is_upgrade=True),
    )
    assert [result.failure for result in results if result.failure] == []
    return not any(
        line.endswith("# told") and number in told_lines(result)
        for result in results
        for number, line in enumerate(modules[result.path].splitlines(), 1)
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_no_form_is_passed_over(name: str) -> None:
    programs = {form: program(form, name) for form in FORMS}
    assert sum(map(bool, programs.values())) > 280
    assert [form for form, modules in programs.items() if modules and is_silent(modules)] == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("from legate.jax import register_task\n" * 2, "from mmruntime import register_task\n"),
        (
            "from jax.experimental.maps import Mesh\nfrom jax.interpreters.pxla import Mesh\n\nmesh = Mesh\n",
            "from jax.sharding import Mesh\n\nmesh = Mesh\n",
        ),
        (
            f"from jax .experimental.pjit import pjit\n{2 * 'from jax.sharding import Mesh;'}\n\nf = pjit(g)\n",
            f"import jax\n{2 * 'from jax.sharding import Mesh;'}\n\nf = jax.jit(g)\n",
        ),
        (
            "import jax\nfrom jax.experimental.pjit import pjit\nimport numpy\n\nimport jax\n"
            "f = pjit(g, in_axis_resources=None, out_axis_resources=None)\n",
            "import jax\nfrom mmruntime import compat\nimport numpy\n\nimport jax\n"
            "f = compat.pjit(g, in_axis_resources=None, out_axis_resources=None)\n",
        ),
        (
            "import jax\nfrom jax.sharding import PartitionSpec as P\nfrom jax.sharding import reshard\n\n"
            "from jax.experimental.pjit import pjit\nfrom jax.sharding import Mesh\n\n\ndef scaled(f, mesh: Mesh):\n"
            "    with mesh:\n        return pjit(f, in_axis_resources=P(), out_axis_resources=P('x'))\n",
            "import jax\nfrom jax.sharding import NamedSharding, reshard\nfrom jax.sharding import PartitionSpec as P\n"
            "from mmruntime import compat\n\nfrom jax.sharding import Mesh\n\n\ndef scaled(f, mesh: Mesh):\n"
            "    with compat.mesh_context(mesh):\n        return jax.jit(\n            f, "
            "in_shardings=NamedSharding(mesh, P()), out_shardings=NamedSharding(mesh, P('x'))\n        )\n",
        ),
        (
            "from jax.experimental.maps import Mesh\nfrom other import *\nfrom jax.sharding import Mesh as M\n",
            "from jax.sharding import Mesh\nfrom other import *\nfrom jax.sharding import Mesh as M\n",
        ),
    ],
)
def test_names_of_several_imports(before: str, after: str) -> None:
    (result,) = modernize_project(source_files({"module.py": before.encode()}), REGISTRY)
    assert result.failure is None and result.result.decode() == after


def test_no_new_name_above_a_star_that_may_bind_it() -> None:
    text = b"import jax\n\n\ndef f(mesh, x):\n    with mesh:\n        return jax.pjit(x)\n\n\nfrom other import *\n"
    (result,) = modernize_project(
        source_files({"module.py": text.replace(b"jax.pjit", b"jax.experimental.pjit.pjit")}), REGISTRY
    )
    assert not result.changed
    assert "`from other import *` on line 9 may give its name another meaning" in str(result.refusals)


def test_a_switch_of_multimesh_that_is_not_called_is_refused() -> None:
    text = b"from legate.jax import only_fuse_loop_tasks\nx = only_fuse_loop_tasks.lax\n"
    (result,) = modernize_project(source_files({"module.py": text}), REGISTRY)
    assert "has no effect in `mmruntime`; call it in a `with`" in str(result.refusals)
