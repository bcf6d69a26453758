"""What a name stands for, and where an import goes."""

from __future__ import annotations

import ast

import pytest

from mmrewrite.codemod.registry import Registry
from mmrewrite.engine.rewrite import rewrite_source
from mmrewrite.project.facts import Facts, SourceFile, read_facts
from mmrewrite.project.project import Project
from mmrewrite.source.names import Module, read_names

REGISTRY = Registry()


def module(text: str) -> Module:
    return read_names(ast.parse(text), "pkg.mod", is_package=False)


def test_what_a_name_resolved_to_is_forgotten_where_imports_lead_elsewhere() -> None:
    names = module("import jax\nP = jax.old")
    name = ast.Name("P", ast.Load())
    assert names.resolve(name, names.scope) == "jax.old"
    names.follow = lambda qualified: qualified.replace("old", "new")
    assert names.resolve(name, names.scope) == "jax.new"
    names.synonyms = {"jax.new": "jax.newest"}
    assert names.resolve(name, names.scope) == "jax.newest"


@pytest.mark.parametrize(
    ("text", "name", "meaning"),
    [
        ("import jax", "jax.jit", "jax.jit"),
        ("import jax as j", "j.jit", "jax.jit"),
        ("import jax.numpy", "jax.numpy.mean", "jax.numpy.mean"),
        ("import jax.numpy as jnp", "jnp.mean", "jax.numpy.mean"),
        ("from jax import jit as compile_it", "compile_it", "jax.jit"),
        ("import jax\nP = jax.sharding.PartitionSpec", "P", "jax.sharding.PartitionSpec"),
        ("import jax\nN, P = jax.NamedSharding, jax.P", "P", "jax.sharding.PartitionSpec"),
        ("import jax\n(a, [b, P]) = (1, [2, jax.P])", "P", "jax.sharding.PartitionSpec"),
        ("import jax\nfirst = jax.grad\nsecond = first", "second", "jax.grad"),
        ("import jax\nfirst: object = jax.grad", "first", "jax.grad"),
        (
            "try:\n    from jax import P\nexcept ImportError:\n    from jax.sharding import PartitionSpec as P",
            "P",
            "same",
        ),
        ("from .sub import thing", "thing", "pkg.sub.thing"),
        ("from . import sub", "sub.thing", "pkg.sub.thing"),
        ("def f(): pass", "f", "pkg.mod.f"),
        ("", "enumerate", "builtins.enumerate"),
    ],
)
def test_resolved(text: str, name: str, meaning: str) -> None:
    names = module(text)
    meaning = "jax.sharding.PartitionSpec" if meaning == "same" else meaning
    assert names.resolve_dotted(name, names.scope) == meaning


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("from jax import *", "jit"),
        ("import jax\nimport torch as jax", "jax.jit"),
        ("import jax\njit = jax.jit\njit = print", "jit"),
        ("a = b\nb = a", "a"),
        ("from .... import sub", "sub"),
        ("import jax\n*P, q = jax.P, 1", "P"),
        ("import jax\nP, *q = jax.P, 1, 2", "P"),
    ],
)
def test_unresolved(text: str, name: str) -> None:
    names = module(text)
    assert names.resolve_dotted(name, names.scope) is None


def test_scopes_are_those_of_python() -> None:
    names = module(
        "import jax\n"
        "class A:\n"
        "    jax = 1\n"
        "    def f(self):\n"
        "        x = jax\n"
        "def g(jax):\n"
        "    y = jax\n"
        "def h():\n"
        "    global jax\n"
        "    z = jax\n"
    )
    found = {
        ast.unparse(statement): names.resolve(statement.value, scope)
        for statement, scope in names.scopes.items()
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Name)
    }
    assert found == {"x = jax": "jax", "y = jax": None, "z = jax": "jax"}


def test_free_names_capture_nothing() -> None:
    names = module("def f():\n    def g():\n        return used\n    own = [inner for inner in ()]\n    return own\n")
    scope = next(scope for node, scope in names.inner.items() if isinstance(node, ast.FunctionDef) and node.name == "f")
    assert not scope.is_free("used")
    assert not scope.is_free("own")
    assert scope.is_free("inner")
    assert scope.is_free("other")


@pytest.mark.parametrize(
    ("place", "name", "level", "meaning"),
    [
        (("pkg.mod", False), "a", 0, "a"),
        (("pkg.mod", False), "a", 1, "pkg.a"),
        (("pkg.mod", False), None, 1, "pkg"),
        (("pkg.mod", False), "a", 2, ".a"),
        (("pkg.mod", False), "a", 3, "..a"),
        (("pkg", True), "a", 1, "pkg.a"),
        (("pkg.sub", True), "a", 2, "pkg.a"),
        (("mod", False), "a", 1, ".a"),
        (("mod", False), None, 1, "."),
        (("", False), "a", 1, None),
    ],
)
def test_relative_imports(place: tuple[str, bool], name: str | None, level: int, meaning: str | None) -> None:
    statement = ast.ImportFrom(name, [ast.alias("x")], level)
    assert read_names(ast.parse(""), *place).home_of(statement) == meaning


def test_names_are_followed_through_modules_of_the_project() -> None:
    files = {
        "./aliases.py": b"from specs import Spec as P\n",
        "./specs.py": b"import jax\nSpec = jax.sharding.PartitionSpec\nimport cycle\n",
        "./cycle.py": b"from cycle import itself\n",
    }
    facts = read_facts(SourceFile("main.py", b"from aliases import P\nfrom cycle import itself\n", "main"), ())
    assert isinstance(facts, Facts)
    Project([facts], files.get, ())
    assert facts.names.resolve_dotted("P", facts.names.scope) == "jax.sharding.PartitionSpec"
    assert facts.names.resolve_dotted("itself", facts.names.scope) == "cycle.itself"


@pytest.mark.parametrize("is_listed", [False, True])
def test_no_file_is_asked_for_that_a_folder_does_not_hold(is_listed: bool) -> None:
    asked: list[str] = []
    specs = b"import jax\nSpec = jax.sharding.PartitionSpec\n"
    files = {"./own/specs.py": specs} | ({"./": b"own"} if is_listed else {})

    def load(place: str) -> bytes | None:
        asked.append(place)
        return files.get(place)

    # A namespace package is a folder without an `__init__.py`; a file of the run need not be written yet.
    program = b"import jax.numpy\nfrom own.specs import Spec\nfrom new.specs import Spec as New\n"
    given = [SourceFile("main.py", program, "main"), SourceFile("new/specs.py", specs, "new.specs")]
    read = [read_facts(file, ()) for file in given]
    facts = [each for each in read if isinstance(each, Facts)]
    Project(facts, load, ())
    names = facts[0].names
    found = [names.resolve_dotted(each, names.scope) for each in ("Spec", "New", "jax.numpy.sum")]
    assert found == ["jax.sharding.PartitionSpec"] * 2 + ["jax.numpy.sum"]
    assert is_listed != any(place.startswith("./jax") for place in asked)


HINTED = "def f(x):\n    return x\n\n\ny = f(1)  # mm: task(stage=0)\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("import jax\n\n\n", "import jax\nimport mmruntime as mm\n\n\n"),
        ("import jax\nimport numpy\n\n\n", "import jax\nimport mmruntime as mm\nimport numpy\n\n\n"),
        ("from jax import jit\n\n\n", "import mmruntime as mm\nfrom jax import jit\n\n\n"),
        ("import os\n\n\n", "import os\n\nimport mmruntime as mm\n\n\n"),
        ("import numpy\nimport jax\n\n\n", "import numpy\nimport jax\nimport mmruntime as mm\n\n\n"),
        ("import jax; import os\n\n\n", "import jax; import os\nimport mmruntime as mm\n\n\n"),
        ("import jax; x = (\n    1)\n\n\n", "import jax; x = (\n    1)\nimport mmruntime as mm\n\n\n"),
        ('"""Doc."""\n\n\n', '"""Doc."""\n\nimport mmruntime as mm\n\n\n'),
        ("# A licence.\n", "# A licence.\nimport mmruntime as mm\n\n\n"),
        ("from . import sibling\n\n\n", "import mmruntime as mm\nfrom . import sibling\n\n\n"),
    ],
)
def test_the_runtime_is_imported_among_its_kind(before: str, after: str) -> None:
    result = rewrite_source(before + HINTED, REGISTRY).result.decode()
    assert result.startswith(after + "def f(x):")


@pytest.mark.parametrize(
    ("imports", "name"),
    [
        ("import mmruntime", "mmruntime"),
        ("import mmruntime as rt", "rt"),
        ("mm = 3", "mm_"),
        ("mm = mm_ = 3", "mmruntime"),
        ("if 1:\n    import mmruntime as other", "mm"),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import mmruntime as mm", "mm_"),
    ],
)
def test_an_import_is_reused_and_never_collides(imports: str, name: str) -> None:
    result = rewrite_source(f"{imports}\n{HINTED}", REGISTRY).result.decode()
    assert f"y = {name}.task(f, task={name}.Task(" in result
