"""What every codemod must have: a page, one class, a place among the hints, an order."""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path

import pytest

from mmmodernize.registry import ModernizeRegistry
from mmrewrite.cli.pages import to_check
from mmrewrite.codemod.base import MeshCodemod
from mmrewrite.codemod.registry import Registry
from mmrewrite.directives.vocabulary import DIRECTIVES
from mmrewrite.engine.decide import in_order
from mmrewrite.engine.rewrite import rewrite_source

pytestmark = pytest.mark.quick

REGISTRY = Registry()


@pytest.mark.parametrize(
    ("registry", "name"), [(registry, name) for registry in (REGISTRY, ModernizeRegistry()) for name in registry]
)
def test_page(registry: Registry | ModernizeRegistry, name: str) -> None:
    page = registry.page(name)
    lines = page.splitlines()
    assert registry.summary(name) == lines[0]
    assert lines[0].endswith(".")
    assert lines[1] == ""
    assert "    ->  " in page
    assert "\nRefused: " in page
    assert page.count("\nTo check: ") == 1
    assert (to_check(name) or "").endswith(".")
    assert sum(line.startswith("See https://") for line in lines) == 1


@pytest.mark.parametrize("name", REGISTRY)
def test_class(name: str) -> None:
    codemod = REGISTRY[name]
    assert codemod.directive in DIRECTIVES
    assert codemod.kinds <= DIRECTIVES[codemod.directive].kinds
    assert set(codemod.run_after) <= set(REGISTRY)
    assert codemod.__doc__


def test_every_hint_has_one_codemod() -> None:
    for directive in DIRECTIVES.values():
        for kind in directive.kinds:
            names = [
                name
                for name, codemod in REGISTRY.items()
                if directive.name in (codemod.directive, *codemod.takes) and kind in codemod.kinds
            ]
            assert len(names) == 1, (directive.name, kind)


def test_the_page_shows_what_is_written() -> None:
    """The hinted line of each page, in a program, becomes a line that the page shows."""
    page = REGISTRY.page("compile_for_mesh")
    before = "import jax\n\n# mm: mesh(stage=4)\nstep = jax.jit(step, donate_argnums=0)  # mm: mjit\n"
    assert "step = jax.jit(step, donate_argnums=0)  # mm: mjit" in page
    result = rewrite_source(before, REGISTRY).result.decode().splitlines()[-1]
    assert result in page


def test_order_is_by_name_where_nothing_else_is_said() -> None:
    names = list(in_order(REGISTRY))
    assert names.index("declare_mesh") < names.index("compile_for_mesh")
    assert names.index("place_task") < names.index("constrain_value")
    assert sorted(names) == list(REGISTRY)


def test_names_are_read_without_importing() -> None:
    for module in [codemod.__module__ for codemod in REGISTRY.values()]:
        del sys.modules[module]
    assert list(Registry()) == list(REGISTRY)
    loaded = (name for name in sys.modules if name.startswith("mmcodemods."))
    assert not [name for name in loaded if name.rpartition(".")[2] in REGISTRY]
    assert REGISTRY["place_task"].__name__ == "PlaceTask"


def test_a_module_with_two_classes_is_a_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "two_in_one"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "_private.py").write_text("")
    (package / "pair.py").write_text(
        "from mmrewrite.codemod.base import MeshCodemod\n\n\nclass A(MeshCodemod): ...\n\n\nclass B(MeshCodemod): ...\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    registry = Registry("two_in_one")
    assert list(registry) == ["pair"]
    with pytest.raises(ValueError, match=r"two_in_one\.pair must hold one codemod class, it holds 2\."):
        registry["pair"]
    with pytest.raises(KeyError):
        registry["nothing"]


def test_a_codemod_must_decide() -> None:
    class Undecided(MeshCodemod):
        directive = "task"

    result = rewrite_source("y = f(x)  # mm: task(stage=0)\n", {"undecided": Undecided})
    assert result.failure is not None
    assert "NotImplementedError" in result.failure


def test_codemods_are_small_files() -> None:
    for codemod in REGISTRY.values():
        module = importlib.import_module(codemod.__module__)
        assert module.__file__ is not None
        tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
        assert len([node for node in tree.body if isinstance(node, ast.ClassDef)]) == 1
