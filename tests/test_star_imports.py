"""What names mean that come by `from ... import *`, and names that it would hide."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from mmmodernize.registry import ModernizeRegistry
from mmmodernize.rewrite import modernize_project
from mmrewrite.cli.commands import cli
from mmrewrite.codemod.registry import Registry
from mmrewrite.engine.rewrite import rewrite_project
from mmrewrite.project.facts import Facts, SourceFile, read_facts
from mmrewrite.project.project import Project

REGISTRY = Registry()
HERE = "import jax\nf = jax.grad\n"


def meaning(main: str, name: str, others: dict[str, str]) -> str | None:
    """What a name means in the module `main`, beside others."""
    facts = read_facts(SourceFile("main.py", main.encode(), "main"), ())
    assert isinstance(facts, Facts)
    files = {f"./{path}": text.encode() for path, text in others.items()}
    Project([facts], files.get, ())
    return facts.names.resolve_dotted(name, facts.names.scope)


@pytest.mark.parametrize(
    ("main", "name", "others", "expected"),
    [
        ("from a import *", "f", {"a.py": "def f(): pass"}, "a.f"),
        ("from a import *", "f", {"a.py": HERE}, "jax.grad"),
        ("from a import *", "jax.jit", {"a.py": HERE}, "jax.jit"),
        ("from a import *", "f", {"a.py": "from b import *", "b.py": HERE}, "jax.grad"),
        ("from p import *", "f", {"p/__init__.py": "from .b import *", "p/b.py": "def f(): pass"}, "p.b.f"),
        ("from p import f", "f", {"p/__init__.py": "from .b import *", "p/b.py": "def f(): pass"}, "p.b.f"),
        ("import p", "p.f", {"p/__init__.py": "from .b import *", "p/b.py": "def f(): pass"}, "p.b.f"),
        # The last one that has the name wins.
        ("from a import *\nfrom b import *", "f", {"a.py": "def f(): pass", "b.py": HERE}, "jax.grad"),
        ("from b import *\nfrom a import *", "f", {"a.py": "def f(): pass", "b.py": HERE}, "a.f"),
        ("from unseen import *\nfrom a import *", "f", {"a.py": HERE}, "jax.grad"),
        ("from a import *\nfrom unseen import *", "f", {"a.py": HERE}, None),
        # Code between two of them reads what the first one binds.
        ("from a import *\nx = f\nfrom b import *", "f", {"a.py": "def f(): pass", "b.py": HERE}, None),
        (
            "from a import *\nx = f\nfrom b import *",
            "f",
            {"a.py": HERE, "b.py": "from jax import grad as f"},
            "jax.grad",
        ),
        ("x = 1\nfrom a import *\nfrom b import *", "f", {"a.py": "def f(): pass", "b.py": HERE}, "jax.grad"),
        ("from unseen import *\nx = f\nfrom a import *", "f", {"a.py": HERE}, None),
        # A decorator has run when a line below binds its name anew, and so has the body of a class.
        ("from a import *\n@f\ndef g(): ...\nfrom jax import grad as f", "f", {"a.py": "def f(): pass"}, None),
        ("from a import *\n@f\ndef g(): ...\nfrom jax import grad as f", "f", {"a.py": HERE}, "jax.grad"),
        ("from a import *\nclass G:\n    g = f\nfrom jax import grad as f", "f", {"a.py": "def f(): pass"}, None),
        ("from a import *\ndef g(): return f\nfrom jax import grad as f", "f", {"a.py": "def f(): pass"}, "jax.grad"),
        ("from a import *\nfrom jax import grad as f\n@f\ndef g(): ...", "f", {"a.py": "def f(): pass"}, "jax.grad"),
        ("from unseen import *\n@f\ndef g(): ...\nfrom jax import grad as f", "f", {}, None),
        # A module of a package is an attribute of it once anything imports that.
        ("import jax\nfrom p import *", "jax.jit", {"p/__init__.py": "from .jax import f", "p/jax.py": "f = 1"}, None),
        # The same thing comes from both.
        ("import jax\nfrom a import *", "jax.jit", {"a.py": HERE}, "jax.jit"),
        ("import jax\nfrom a import *", "jax.jit", {"a.py": "jax = 1"}, None),
        ("from a import *\nimport jax", "jax.jit", {"a.py": "jax = 1"}, "jax.jit"),
        ("import jax\nfrom a import *", "jax.jit", {"a.py": "jax = 1\n__all__ = ['f']"}, "jax.jit"),
        ("import jax\nfrom a import *", "jax.jit", {"a.py": "from b import *", "b.py": "x = 1"}, "jax.jit"),
        # Built-in functions.
        ("from a import *", "enumerate", {"a.py": HERE}, "builtins.enumerate"),
        ("from a import *", "enumerate", {"a.py": "from b import *", "b.py": HERE}, "builtins.enumerate"),
        ("from a import *", "enumerate", {"a.py": "def enumerate(x): pass"}, "a.enumerate"),
        ("from a import *", "enumerate", {"a.py": "if x:\n    def enumerate(x): pass"}, None),
        # What `__all__` says.
        ("from a import *", "f", {"a.py": f"{HERE}__all__ = ['f']"}, "jax.grad"),
        ("from a import *", "f", {"a.py": f"{HERE}__all__ = ('g',)"}, None),
        ("from a import *", "f", {"a.py": f"{HERE}__all__ = ['f']\n__all__ += g()"}, "jax.grad"),
        ("from a import *", "f", {"a.py": f"{HERE}__all__ = ['f']\n__all__.remove('f')"}, None),
        ("from a import *", "f", {"a.py": f"{HERE}__all__ = names()"}, None),
        ("from a import *", "f", {"a.py": f"{HERE}if x:\n    __all__ = ['f']"}, None),
        *(
            ("import jax\nfrom a import *", "jax.jit", {"a.py": f"jax = f = g = 1\n{listed}"}, "jax.jit")
            for listed in (
                "__all__: list[str] = ['f']",
                "__all__ = ['f']\n__all__ += ['g']",
                "__all__ = ['f'] + ['g']",
                "__all__ = sorted(('f', *['g']))",
                "__all__ = ['f']\n__all__.append('g')\n__all__.extend(['g'])",
                "__all__ = ['f']\nassert len(__all__) == len(set(__all__)) and 'g' not in __all__",
                "__all__ = ['f']\nfor name in __all__: print(name)",
            )
        ),
        *(
            ("import jax\nfrom a import *", "jax.jit", {"a.py": f"jax = f = g = 1\n{listed}"}, None)
            for listed in (
                "__all__ = ['f']\n__all__ += ['jax']",
                "__all__ = ['f']\n__all__ += g",
                "__all__ = ['f']\nif f: __all__ += ['jax']",
                "__all__ = ['f']\nfill(__all__)",
                "__all__ = names = ['f']\nnames.append('jax')",
                "__all__ = ['f']\nnames = __all__\nnames.append('jax')",
                "from f import __all__",
                "__all__ = dir()",
            )
        ),
        # It can name nothing that the module does not have.
        ("import jax\nfrom a import *", "jax.jit", {"a.py": "_f = 1\n__all__ = dir()"}, "jax.jit"),
        ("import jax\nfrom a import *", "jax.jit", {"a.py": "__all__ = f()\ndef __getattr__(name): return 1"}, None),
        ("import jax\nfrom p import *", "jax.jit", {"p/__init__.py": "__all__ = f()", "p/jax.py": ""}, None),
        *(
            ("import jax\nfrom a import *", "jax.jit", {"a.py": by_text}, None)
            for by_text in (
                "globals().update(table)",
                "globals()['jax'] = 1",
                "exec('jax = 1')",
                "vars()['jax'] = 1",
                "import sys\nsetattr(sys.modules[__name__], 'jax', 1)",
            )
        ),
        ("from a import *", "_f", {"a.py": "def _f(): pass"}, None),
        ("from a import *", "_f", {"a.py": "def _f(): pass\n__all__ = ['_f']"}, "a._f"),
        # What may not run.
        ("if x:\n    from a import *", "f", {"a.py": HERE}, None),
        ("try:\n    from a import *\nexcept ImportError:\n    pass", "f", {"a.py": HERE}, None),
        ("from a import *", "f", {"a.py": "if x:\n    def f(): pass"}, None),
        ("from a import *", "f", {"a.py": "for f in (): pass"}, None),
        # Modules that import each other.
        ("from a import *", "f", {"a.py": "from b import *", "b.py": "from a import *"}, None),
        ("from a import *", "f", {"a.py": f"from b import *\n{HERE}", "b.py": "from a import *"}, "jax.grad"),
        ("from main import *", "f", {}, None),
    ],
)
def test_meaning(main: str, name: str, others: dict[str, str], expected: str | None) -> None:
    assert meaning(main, name, others) == expected


MODEL = "def forward(x, f):\n    return f(x)  # mm: task(stage=0)\n"


@pytest.mark.parametrize(
    ("train", "runtime"),
    [
        ("from model import *\n", "mm"),
        ("from model import *\nmm = 1\n", "mm_"),
        ("from other import *\nfrom model import *\n", "mm_"),
        ("mm = 1\nfrom model import *\nprint(mm)\n", "mm_"),
        ("from other import *\nfrom model import *\nprint(mm)\n", "mm_"),
        ("from model import *\nimport mmruntime as mm\nprint(mm)\n", "mm"),
        ("from model import forward\nmm = 1\n", "mm"),
    ],
)
def test_a_new_name_hides_none_where_all_names_are_imported(train: str, runtime: str) -> None:
    texts = {"model.py": MODEL, "train.py": train, "other.py": "mm = 2\n", "both.py": "from train import *\n"}
    files = [SourceFile(path, text.encode(), path.removesuffix(".py")) for path, text in texts.items()]
    for results in (rewrite_project(files, REGISTRY), rewrite_project(files[:1], REGISTRY, starring=files[1:])):
        assert f"import mmruntime as {runtime}\n" in results[0].result.decode()
        assert not any(result.changed for result in results[1:])


@pytest.mark.parametrize(
    ("model", "train", "runtime"),
    [
        # What a later star import binds would hide a new name.
        (f"{MODEL}from other import *\n", "", "mm_"),
        (f"from other import *\n{MODEL}", "", "mm_"),
        (f"from empty import *\n{MODEL}", "", "mm"),
        # Nothing is exported that `__all__` lacks, unless it may name more.
        (f"__all__ = ['forward']\n{MODEL}", "from model import *\nmm = 1\n", "mm"),
        (f"__all__ = dir()\n{MODEL}", "from model import *\nmm = 1\n", "mm_"),
    ],
)
def test_a_new_name_is_none_that_star_imports_bind(model: str, train: str, runtime: str) -> None:
    texts = {"model.py": model, "train.py": train, "other.py": "mm = 2\n", "empty.py": ""}
    files = [SourceFile(path, text.encode(), path.removesuffix(".py")) for path, text in texts.items()]
    assert f"import mmruntime as {runtime}\n" in rewrite_project(files, REGISTRY)[0].result.decode()


def test_files_with_star_imports_are_found_where_files_are_read(tmp_path) -> None:
    texts = {"model.py": MODEL, "train.py": "mm = 1\nfrom model import *\nprint(mm)\n", "plain.py": "x = 1\n"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    run = CliRunner().invoke(cli, ["diff", str(tmp_path)])
    assert "+import mmruntime as mm_" in run.output
    # The result of the earlier run is not that of this one.
    (tmp_path / "train.py").write_text("from model import *\n")
    run = CliRunner().invoke(cli, ["diff", str(tmp_path)])
    assert "+import mmruntime as mm\n" in run.output


def test_modules_that_star_imports_reach_by_many_ways_are_asked_once() -> None:
    chain = {f"m{i}.py": f"import jax\nfrom m{i + 1} import *\nfrom m{i + 2} import *\n" for i in range(60)}
    assert meaning("from m0 import *", "f", chain | {"m60.py": HERE, "m61.py": HERE}) == "jax.grad"
    assert meaning("from m0 import *", "jax.jit", chain | {"m60.py": HERE, "m61.py": HERE}) == "jax.jit"


def test_a_mesh_hides_no_name_where_all_names_are_imported() -> None:
    step = "import jax\n\n# mm: mesh(stage=2)\n\n\n@jax.jit  # mm: mjit\ndef step(x):\n    return x\n"
    texts = {"train.py": step, "base.py": "mesh = 7\n", "hub.py": "from base import *\nfrom train import *\n"}
    files = [SourceFile(path, text.encode(), path.removesuffix(".py")) for path, text in texts.items()]
    result = rewrite_project(files, REGISTRY)[0]
    assert not result.changed
    reasons = [refusal.reason for refusal in result.refusals]
    assert any("another thing of this name is where `import *` takes it" in reason for reason in reasons)
    assert rewrite_project(files[:2], REGISTRY)[0].changed


@pytest.mark.parametrize(
    ("main", "is_kept"),
    [
        ("from other import *\nfrom jax.sharding import PositionalSharding\n\ns = PositionalSharding\n", False),
        ("from other import *\n\ns = PositionalSharding\n", True),
        ("from other import *\n\nr = PositionalSharding\nfrom jax.sharding import PositionalSharding\n", False),
        ("from jax.sharding import PositionalSharding\nfrom other import *\n\ns = PositionalSharding\n", False),
        *(
            (
                f"from other import *\n{branch}:\n    from jax.sharding import PositionalSharding\n"
                "s = PositionalSharding\n",
                False,
            )
            for branch in ("if r", "while r", "with open(r)", "for i in r", "if r:\n    pass\nelse", "if r:\n  if r")
        ),
        ("from other import *\nif r:\n    PositionalSharding = None\ns = PositionalSharding\n", True),
        (
            "from other import *\ndef f():\n    from jax.sharding import PositionalSharding\n"
            "    return PositionalSharding\ns = PositionalSharding\n",
            True,
        ),
    ],
)
def test_an_old_import_is_kept_for_those_that_take_it_by_a_star(main: str, is_kept: bool) -> None:
    other = "import jax\nfrom jax.sharding import PositionalSharding\n\nr = PositionalSharding(jax.devices())\n"
    texts = {"main.py": main, "other.py": other}
    files = [SourceFile(path, text.encode(), path.removesuffix(".py")) for path, text in texts.items()]
    found = modernize_project(files, ModernizeRegistry())
    assert [each.failure for each in found] == [None, None]
    assert (b"from jax.sharding import PositionalSharding" in found[1].result) == is_kept


OWN = """\
import jax
import jax.numpy as jnp
from jax import tree_map
from jax.experimental.pjit import pjit as compile

CALL = 0
"""


@pytest.mark.parametrize(
    ("main", "expected"),
    [
        ("from own import *\nx = jax.tree_map(f, y)\n", "from own import *\nx = jax.tree.map(f, y)\n"),
        ("from hub import *\nx = jnp.product(y)\n", "from hub import *\nx = jnp.prod(y)\n"),
        ("import jax\nfrom own import *\njax.tree_map(f, y)\n", "import jax\nfrom own import *\njax.tree.map(f, y)\n"),
        ("from own import *\nx = jnp.clip(y, a_min=0)\n", "from own import *\nx = jnp.clip(y, min=0)\n"),
        (
            "from own import *\nx = compile(f, in_axis_resources=None)\n",
            "from own import *\nfrom mmruntime import compat\nx = compat.pjit(f, in_axis_resources=None)\n",
        ),
        # It is edited where it is imported.
        ("from own import *\nx = tree_map(f, y)\n", "from own import *\nx = tree_map(f, y)\n"),
        # The name is another's somewhere.
        (
            "from own import *\ndef f(jax):\n    return jax.tree_map(f, y)\nx = jax.tree_map(f, y)\n",
            "from own import *\ndef f(jax):\n    return jax.tree_map(f, y)\nx = jax.tree.map(f, y)\n",
        ),
        ("from own import *\nfrom unseen import *\nx = jax.tree_map(f, y)\n", None),
        ("if f:\n    from own import *\nx = jax.tree_map(f, y)\n", None),
        ("from own import *\nfrom text import *\nx = jax.tree_map(f, y)\n", None),
    ],
)
def test_old_names_that_a_module_of_the_project_gives_by_a_star(main: str, expected: str | None) -> None:
    texts = {"main.py": main, "own.py": OWN, "hub.py": "from own import *\n", "text.py": "globals().update(CALLS)\n"}
    files = [SourceFile(path, text.encode(), path.removesuffix(".py")) for path, text in texts.items()]
    found = {each.path: each for each in modernize_project(files, ModernizeRegistry())}
    assert {each.failure for each in found.values()} == {None}
    assert found["main.py"].result.decode() == (main if expected is None else expected)
    assert expected is not None or found["main.py"].left
    # What the others take from there stays.
    own = found["own.py"].result.decode().splitlines()
    assert {"import jax", "import jax.numpy as jnp", "from jax.tree_util import tree_map"} <= {*own}
