"""Keywords that are gone, in calls of a function that a program holds as a value: none is passed over in silence."""

from __future__ import annotations

from pathlib import Path

import pytest
from fixture_files import modernize_text, source_files
from test_old_parts import REGISTRY, seen

from mmmodernize.doubts.held_functions import held_functions
from mmmodernize.names.call_gate import held_across
from mmmodernize.names.old_keywords import lost_keywords
from mmmodernize.names.reexports import TakenNames
from mmmodernize.rewrite import modernize_project
from mmrewrite.cli.quick import has_nothing_to_say

HEAD = "import functools, importlib, operator, pkgutil, sys\nfrom functools import partial\nimport numpy as np\n"
# `@f` is the function, `@h` its module, `@o` its own name, and `@k=1` the keyword that it lost.
FORMS = {
    # Names of several values.
    "one branch": "if big:\n    g = @f\nelse:\n    g = np.clip\ng(x, @k=1)  # told\n",
    "partial in one branch": "if big:\n    g = partial(@f, 0)\nelse:\n    g = np.clip\ng(x, @k=1)  # told\n",
    "partial, then rebound": "g = partial(@f, 0)\ng(x, @k=1)  # told\ng = other\n",
    "none at first": "g = None\nif big:\n    g = @f\ng(x, @k=1)  # told\n",
    "conditional": "g = partial(@f, 0) if big else np.clip\ng(x, @k=1)  # told\n",
    "called conditional": "(@f if big else np.clip)(x, @k=1)  # told\n",
    "or": "g = given or @f\ng(x, @k=1)  # told\n",
    "named expression": "(g := partial(@f, 0))(x, @k=1)  # told\ng(x, @k=1)  # told\n",
    "annotated": "g: object = partial(@f, 0)\ng(x, @k=1)  # told\n",
    "unpacked": "g, _ = partial(@f, 0), 1\ng(x, @k=1)  # told\n",
    "several targets": "a = g = partial(@f, 0)\ng(x, @k=1)  # told\na(x, @k=1)  # told\n",
    "loop": "for g in (@f, np.clip):\n    g(x, @k=1)  # told\n",
    "context": "with null(@f) as g:\n    g(x, @k=1)  # told\n",
    "pattern": "match @f:\n    case g:\n        g(x, @k=1)  # told\n",
    "global": "g = None\ndef choose():\n    global g\n    g = @f\ndef run():\n    g(x, @k=1)  # told\n",
    "alias": "g = @f\nown = g\nown = own or other\nown(x, @k=1)  # told\n",
    "guarded import": "try:\n    from @h import @o\nexcept ImportError:\n    from b import @o\n@o(x, @k=1)  # told\n",
    "star import": "from @h import *\n@o(x, @k=1)  # told\n",
    # Containers, parameters and results.
    "table": "T = {'c': partial(@f, 0)}\nT['c'](x, @k=1)  # told\n",
    "list": "T = [@f]\nT[0](x, @k=1)  # told\n",
    "result": "def get():\n    return partial(@f, 0)\nget()(x, @k=1)  # told\n",
    "result of a lambda": "get = lambda: @f\nget()(x, @k=1)  # told\n",
    "result of a partial": "def get(a):\n    return @f\np = partial(get, 0)\np()(x, @k=1)  # told\n",
    "parameter": "def run(g):\n    return g(x, @k=1)  # told\nrun(@f)\n",
    "default": "def run(g=partial(@f, 0)):\n    return g(x, @k=1)  # told\n",
    "argument": "def apply(g, *a, **k):\n    return g(*a, **k)\napply(@f, x, @k=1)  # told\n",
    "argument of a method": "pool.submit(@f, x, @k=1)  # told\n",
    "what another call makes": "unknown.jit(@f)(x, @k=1)  # told\n",
    "what a partial of a transformation makes": "import jax\npartial(jax.jit)(@f)(x, @k=1)  # told\n",
    "what a transformation without a function makes": "import jax\njax.jit()(@f)(x, @k=1)  # told\n",
    "named partial of a transformation": "import jax\nj = partial(jax.jit)\nj(@f)(x, @k=1)  # told\n",
    "lowered": "import jax\njax.jit(@f).lower(x, @k=1)  # told\n",
    "jit of Flax": "from flax import nnx\nnnx.jit(@f)(x, @k=1)  # told\n",
    "callback": "import jax\njax.pure_callback(@f, shape, x, @k=1)  # told\n",
    "evaluated shapes": "import jax\njax.eval_shape(@f, x, @k=1)  # told\n",
    # Attributes.
    "static method": (
        "class C:\n    g = staticmethod(partial(@f, 0))\n    def f(self, x):\n        self.g(x, @k=1)  # told\n"
        "C.g(x, @k=1)  # told\nC().g(x, @k=1)  # told\n"
    ),
    "class attribute": "class C:\n    g = partial(@f, 0)\nC.g(x, @k=1)  # told\n",
    "partial method": "class C:\n    g = functools.partialmethod(@f)\n    def f(self):\n        self.g(@k=1)  # told\n",
    "field": "class C:\n    g: object = @f\n    def f(self, x):\n        self.g(x, @k=1)  # told\n",
    "given field": "class C:\n    g: object\n    def f(self, x):\n        self.g(x, @k=1)  # told\nC(@f)\n",
    "two values": (
        "class C:\n    def __init__(self):\n        self.g = partial(@f, 0)\n        self.g = self.g or other\n"
        "    def f(self, x):\n        self.g(x, @k=1)  # told\n"
    ),
    "attribute of another object": "c.g = partial(@f, 0)\nc.g(x, @k=1)  # told\n",
    "property": "class C:\n    @property\n    def g(self):\n        return @f\nC().g(x, @k=1)  # told\n",
    "module in one branch": "xp = @h if big else np\nxp.@o(x, @k=1)  # told\n",
    "module that is passed": "def run(xp):\n    xp.@o(x, @k=1)  # told\nrun(@h)\n",
    "module by its name": "importlib.import_module('@h').@o(x, @k=1)  # told\n",
    "module in the table": "sys.modules['@h'].@o(x, @k=1)  # told\n",
    # Texts.
    "getattr": "getattr(@h, '@o')(x, @k=1)  # told\n",
    "getattr with a default": "getattr(@h, '@o', None)(x, @k=1)  # told\n",
    "getattr of a computed name": "for n in ('@o', 'other'):\n    getattr(@h, n)(x, @k=1)  # told\n",
    "getattr by a name": "g = getattr(@h, '@o')\ng(x, @k=1)  # told\n",
    "partial of getattr": "partial(getattr, @h)('@o')(x, @k=1)  # told\n",
    "partial of a lookup": "partial(getattr(@h, '@o'), @k=1)  # told\n",
    "vars": "vars(@h)['@o'](x, @k=1)  # told\n",
    "get": "vars(@h).get('@o')(x, @k=1)  # told\n",
    "dictionary": "@h.__dict__['@o'](x, @k=1)  # told\n",
    "attrgetter": "operator.attrgetter('@o')(@h)(x, @k=1)  # told\n",
    "methodcaller": "operator.methodcaller('@o', x, @k=1)(@h)  # told\n",
    "resolved name": "pkgutil.resolve_name('@h:@o')(x, @k=1)  # told\n",
    "added names": "globals().update(vars(@h))\n@o(x, @k=1)  # told\n",
}


def program(form: str, name: str, keyword: str) -> str:
    home, _, own = name.rpartition(".")
    text = form.replace("@f", name).replace("@h", home).replace("@o", own).replace("@k", keyword)
    return f"import {home}\n{HEAD}{text}"


def silent(texts: dict[str, str]) -> list[str]:
    """The lines that are to be told and are not, of programs each of which is a project."""
    found = []
    for name, text in texts.items():
        result = modernize_text(text)
        told = {number for number, line in enumerate(text.splitlines(), 1) if line.endswith("# told")}
        found += [f"{name}: line {number}" for number in sorted(told - seen(result))]
    return found


@pytest.mark.parametrize("name", ["jax.numpy.clip", "jax.numpy.reshape", "flax.nnx.grad"])
def test_no_way_to_hold_a_function_hides_its_keywords(name: str) -> None:
    keyword = max(lost_keywords()[name])
    assert silent({form: program(text, name, keyword) for form, text in FORMS.items()}) == []


# One for each way by which names lose track of a function.
LOST = ("partial in one branch", "getattr", "static method")


@pytest.mark.slow
def test_no_function_is_passed_over() -> None:
    names = sorted(held_functions())
    assert len(names) > 200
    forms = {name: FORMS[LOST[place % len(LOST)]] for place, name in enumerate(names)}
    assert silent({name: program(form, name, max(lost_keywords()[name])) for name, form in forms.items()}) == []


# Calls of something else: with the same keyword, of the same name, or of what a function gives.
OTHERS = """
import functools, operator
import jax.numpy as jnp
import numpy as np
held = [jnp.clip]
def clip(x, a_max):
    return jnp.clip(x, None, a_max)
clip(x, a_max=1)
np.clip(x, a_max=1)
functools.partial(np.clip, a_max=1)
def make():
    return jnp.clip
make(a_max=1)
jnp.clip(x)(a_max=1)
def takes(function, a_max): ...
takes(jnp.clip, a_max=1)
getattr(np, "clip")(x, a_max=1)
operator.attrgetter("clip")(np, a_max=1)
class Image:
    def clip(self, a_max): ...
    def f(self):
        self.clip(a_max=1)
solver = Solver(function=jnp.clip)
solver.run(a_max=1)
"""


def test_calls_of_something_else_are_not_told() -> None:
    result = modernize_text(OTHERS)
    assert result.result == result.original
    assert seen(result) == set()


def test_a_static_argument_that_a_partial_of_jit_names_is_refused() -> None:
    text = (
        "import functools, jax\nimport jax.numpy as jnp\n"
        "functools.partial(jax.jit, static_argnames='newshape')(jnp.reshape)(x, newshape=(2,))\n"
        "functools.partial(jax.jit, static_argnums=1)(jnp.reshape)(x, newshape=(2,))\n"
    )
    result = modernize_text(text)
    assert [item.line for item in result.refusals] == [3]
    assert result.result.decode() == text[::-1].replace("epahswen", "epahs", 1)[::-1]


# Files of which none has an old name: what calls, by way of which others, what holds the function.
APART = {
    "table": {
        "ops.py": "import jax.numpy as jnp\nOPS = {'clip': jnp.clip}\n",
        "main.py": "from ops import OPS\nOPS['clip'](x, a_max=1)  # told\n",
    },
    "object": {
        "ops.py": "import jax.numpy as jnp\nclass Ops:\n    def __init__(self):\n        self.limit = jnp.clip\n",
        "main.py": "from ops import Ops\nOps().limit(x, a_max=1)  # told\n",
    },
    "argument": {
        "ops.py": "import jax.numpy as jnp\nfrom main import run\nrun(jnp.clip, x)\n",
        "main.py": "def run(g, x):\n    return g(x, a_max=1)  # told\n",
    },
    "argument of an argument": {
        "ops.py": "import jax.numpy as jnp\nfrom between import run\nrun(jnp.clip, x)\n",
        "between.py": "from main import go\ndef run(h, x):\n    return go(h, x)\n",
        "main.py": "def go(g, x):\n    return g(x, a_max=1)  # told\n",
    },
    "result of another file": {
        "ops.py": "import jax.numpy as jnp\ndef get():\n    return jnp.clip\n",
        "between.py": "import ops\nclass Holder:\n    g = ops.get()\n",
        "main.py": "from between import Holder\nHolder.g(\n    x,\n    a_max=1,  # told\n)\n",
    },
    "a third file ties both": {
        "ops.py": "import jax.numpy as jnp\nOPS = [jnp.quantile]\n",
        "both.py": "import main, ops\nmain.run(ops.OPS[0])\n",
        "main.py": "def run(g):\n    return g(x, interpolation = 'linear')  # told\n",
    },
    "lookup": {
        "ops.py": "import jax.numpy as jnp\nclip = getattr(jnp, 'clip')\n",
        "main.py": "import ops\nops.clip(x, a_max=1)  # told\n",
    },
    "module": {
        "ops.py": "import jax.numpy as jnp\nfrom main import run\nrun(jnp)\n",
        "main.py": "def run(xp):\n    return xp.clip(x, a_max=1)  # told\n",
    },
    "notebook": {
        "ops.py": "import jax.numpy as jnp\nOPS = {'clip': jnp.clip}\n",
        "main.ipynb": (
            '{"cells": [{"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": null, "source": '
            '["from ops import OPS\\n", "OPS[\'clip\'](x,\\na_max=1)"]}], "metadata": {}, "nbformat": 4, '
            '"nbformat_minor": 5}'
        ),
    },
}


@pytest.mark.parametrize("how", APART)
def test_a_call_in_a_file_without_old_names_is_told(how: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files = {path: text.encode() for path, text in APART[how].items()}
    results = modernize_project(source_files(files), REGISTRY)
    told = {
        (path, number)
        for path, text in APART[how].items()
        for number, line in enumerate(text.splitlines(), 1)
        if line.endswith("# told")
    }
    found = {(each.path, each.line) for result in results for each in result.left}
    assert found == (told or {("main.ipynb, cell 1", 3)})
    # And no way of the command line is shorter.
    monkeypatch.chdir(tmp_path)
    for path, data in files.items():
        (tmp_path / path).write_bytes(data)
    assert not has_nothing_to_say(["modernize", "--check"])


# Each function is held, and each keyword is given, but not one of its own.
UNTIED = {
    "ops.py": "import jax.numpy as jnp\nOPS = {'clip': jnp.clip}\n",
    "main.py": "from ops import OPS\nOPS['clip'](x, interpolation=1)\nother(a_max == 1)\n",
    "called.py": "import jax.numpy as jnp\njnp.quantile(x, 0.5)\n",
}


def test_files_are_not_read_for_keywords_of_functions_that_no_file_holds() -> None:
    files = {path: text.encode() for path, text in UNTIED.items()}
    assert held_across(files, files, TakenNames(files, lambda _: None)) == set()
    files["main.py"] = files["main.py"].replace(b"interpolation", b"a_max")
    assert held_across(files, files, TakenNames(files, lambda _: None)) == {"main.py", "ops.py"}


def test_where_a_function_comes_from_is_said() -> None:
    files = {
        "tools.py": b"def run(function, x):\n    # For jax.\n    return function(x, a_max=1)\n",
        "main.py": b"import jax.numpy as jnp\nfrom tools import run\nrun(jnp.clip, jnp.clip(x, a_min=0))\n",
    }
    (left,) = (each for result in modernize_project(source_files(files), REGISTRY) for each in result.left)
    assert (left.path, left.line, left.column) == ("tools.py", 3, 24)
    assert left.reason == (
        "`function` may be `jax.numpy.clip`, by main.py:3; `a_max=` of that is `max=` since JAX 0.4.27"
    )
