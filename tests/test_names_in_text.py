"""Old names in code in strings, by whatever name the code calls them: each is reported."""

from __future__ import annotations

import pytest
from fixture_files import modernize_text, source_files

from mmmodernize.registry import ModernizeRegistry
from mmmodernize.rewrite import modernize_project

REGISTRY = ModernizeRegistry()

# Code in a string by itself, and below `import jax` in a file.
WITH_IMPORTS = {
    "alias": "import jax as j\nj.tree_map(abs, 1)",
    "alias in a list": "import os, jax as j\nj.tree_map(abs, 1)",
    "first alias of a list": "import jax as j, os as o\nj.tree_map(abs, 1)",
    "alias behind a semicolon": "import os; import jax as j; j.tree_map(abs, 1)",
    "module alias": "import jax.tree_util as t\nt.tree_multimap(abs, 1)",
    "from": "from jax import tree_util\ntree_util.tree_multimap(abs, 1)",
    "from with an alias": "from jax import tree_util as t\nt.tree_multimap(abs, 1)",
    "second of a from": "from jax import numpy, tree_util as t\nt.tree_multimap(abs, 1)",
    "from in brackets": "from jax import (numpy,\n    tree_util as t)\nt.tree_multimap(abs, 1)",
    "comment in brackets": "from jax import (  # of ours)\n    tree_util as t,\n)\nt.tree_multimap(abs, 1)",
    "continued": "from jax import \\\n    tree_util as t\nt.tree_multimap(abs, 1)",
    "from of a name": "from jax import tree_map as m\nm(abs, 1)",
    "alias in capitals": "import jax as J\nJ.tree_map(abs, 1)",
    "assignment": "import jax\nj = jax\nj.tree_map(abs, 1)",
    "assignment of an alias": "import jax as j\nt = j.tree_util\nt.tree_multimap(abs, 1)",
    "function": "def f():\n    import jax as j\n    return j.tree_map(abs, 1)",
    "nested function": "import jax as j\ndef f():\n    def g():\n        return j.tree_map(abs, 1)",
    "star": "from jax import *\ntree_map(abs, 1)",
    "part by a star": "from jax import *\ntree_util.tree_multimap(abs, 1)",
    "on two lines": "import jax as j\n(j\n .tree_map)(abs, 1)",
}
HOW = {
    "exec": "exec({})\n",
    "keyword": "compile(source={}, filename='a', mode='exec')\n",
    "subprocess": "import subprocess, sys\nsubprocess.run([sys.executable, '-c', {}])\n",
    "name": "code = {}\nexec(code)\n",
    "indented": "import textwrap\nexec(textwrap.dedent({}))\n",
    "bytes": "exec({})\n",
    "doctest": "def f():\n    {}\n",
    "fenced": "def f():\n    {}\n",
}
# Code that is run with the names of its module.
OF_THE_MODULE = (
    "import jax as j\nexec('j.tree_map(abs, 1)')\n",
    "from jax import tree_util as t\neval('t.tree_multimap')\n",
    "from jax import (\n    numpy,\n    tree_util as t,\n)\neval('t.tree_multimap')\n",
    "import jax as j\ncode = 'j.tree_map(abs, 1)'\nexec(code)\n",
    "import jax as j\nfor code in (1,):\n    pass\ncode = 'j.tree_map'\nexec(code + '(abs, 1)')\n",
    "import jax as j, timeit\ntimeit.timeit('j.tree_map(abs, 1)', globals=globals())\n",
    "import timeit\ntimeit.timeit('j.tree_map(abs, 1)', setup='import jax as j')\n",
    "import timeit\ntimeit.timeit('t.tree_multimap(abs, 1)', 'import os; from jax import tree_util as t')\n",
    "import timeit\ntimeit.timeit('j.tree_map(abs, 1)', setup='import jax; j = jax')\n",
    "import jax as j\nshell.run_cell('j.tree_map(abs, 1)')\n",
    "import jax as j\ndef f():\n    '''Maps.\n\n    >>> j.tree_map(abs, 1)\n    '''\n",
    "import jax as j\ndef f():\n    '''Maps.\n\n    In [1]: j.tree_map(abs, 1)\n    '''\n",
    "from jax import tree_util as t\n'''>>> for x in y:\n...     t.tree_multimap(abs, x)\n'''\n",
)
# Half of a character, which no encoding has.
HALF = "import jax as j\nexec('import jax as j; j.tree_map(\\ud800)')\n"
# Code beside other text, and code that has what looks like the mark of an example.
BESIDE = (
    "'''>>> %timeit f(x)\n>>> from jax import tree_util as t\n>>> t.tree_multimap(abs, 1)\n'''\n",
    "'''In [1]: !ls\nIn [2]: from jax import tree_util as t\nIn [3]: t.tree_multimap(abs, 1)\n'''\n",
    "'''>>> f(x)\n\n```\nfrom jax import tree_util as t\nt.tree_multimap(abs, 1)\n```\n'''\n",
    "'''```bash\npip install x\n```\n```python\nfrom jax import tree_util as t\nt.tree_multimap(abs, 1)\n```\n'''\n",
    "'''```\n>>> from jax import tree_util as t\n>>> t.tree_multimap(abs, 1)\n```\n'''\n",
    "'''>>> from jax import tree_util as t\n>>> for x in y:\n>>>     t.tree_multimap(abs, x)\n'''\n",
    "exec('from jax import tree_util as t\\nx = \">>> 1\"\\nt.tree_multimap(abs, 1)')\n",
)
# Code that gives a function a keyword that it lost, below `import jax.numpy as jnp` in a file.
WITH_KEYWORDS = {
    "alias": "import jax.numpy as n\nn.clip(x, a_max=1)",
    "from": "from jax.numpy import clip as c\nc(x, a_max=1)",
    "partial": "import functools, jax.numpy as n\nfunctools.partial(n.clip, a_max=1)",
    "softmax": "from flax import linen as nn\nnn.softmax(x, initial=0)",
}
KEYWORDS_OF_THE_MODULE = (
    "eval('jnp.clip(x, a_max=1)')\n",
    "code = 'jnp.quantile(x, 0.5, interpolation=how)'\nexec(code)\n",
    "import timeit\ntimeit.timeit('jnp.clip(x, a_max=1)', globals=globals())\n",
    "import timeit\ntimeit.timeit('n.clip(x, a_max=1)', setup='import jax.numpy as n')\n",
    "def f():\n    QQQClip.\n\n    >>> jnp.clip(x,\n    ...          a_max=1)\n    QQQ\n".replace("QQQ", "'" * 3),
)
NO_KEYWORDS = (
    "eval('jnp.clip(x, max=1)')\n",
    "eval('np.clip(x, a_max=1)')\n",
    "eval('jnp.clip(x) == a_max')\n",
    "x = 'jnp.clip(x, a_max=1), in prose'\n",
    "exec('from flax import linen as nn')\n",
    "exec('def f(a_max=1):\\n    return jnp.clip(x, max=a_max)')\n",
)
# Types in strings outside of annotations, below some imports in a file.
TYPES = (
    "typing.cast('jnp.DeviceArray', x)",
    "cast('KeyArray', x)",
    "typing.cast('list[jax.random.KeyArray]', x)",
    "typing.TypeVar('T', bound='jnp.DeviceArray')",
    "typing.NewType('K', 'KeyArray')",
    "typing.NamedTuple('N', [('k', 'KeyArray')])",
    "typing.Union['jnp.DeviceArray', None]",
    "dict[str, 'KeyArray']",
    "typing.ForwardRef('jnp.DeviceArray')",
    "Float['jnp.DeviceArray', 'batch']",
    "typing.Annotated['KeyArray', 1]",
)
NO_TYPES = (
    "other('KeyArray', x)",
    "typing.Literal['KeyArray']",
    "names['KeyArray']",
    "typing.cast('mylib.KeyArray', x)",
    "typing.cast('jnp.ndarray', x)",
)
NONE = (
    "import jax as j\nexec('j.tree.map(abs, 1)')\n",
    "import jax\nx = 'import mylib as j; j.tree_map(abs, 1)'\n",
    "import jax\nx = 'def f(tree_map): return tree_map'\n",
    "import jax as j\nx = 'an import of j.tree_map, in prose'\n",
    "import jax\n'''>>> from mylib import tree_util as t\n>>> t.tree_multimap(abs, 1)\n'''\n",
)


def told_in(text: str) -> set[int]:
    result = modernize_text(text)
    return {item.line for item in result.left}


def literal(code: str, how: str) -> str:
    if how == "doctest":
        lines = code.splitlines()
        shown = "\n".join(("    >>> " if line[:1].strip() and line[0] != ")" else "    ... ") + line for line in lines)
        return f"r'''Maps.\n\n{shown}\n    '''"
    indented = "".join(f"    {line}\n" for line in code.splitlines())
    if how == "fenced":
        return f"r'''Maps.\n\n    ```python\n{indented}    ```\n    '''"
    if how == "indented":
        return f"r'''\n{indented}    '''"
    return f"b{code!r}" if how == "bytes" else repr(code)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("code", WITH_IMPORTS)
def test_code_with_its_own_imports(code: str, how: str) -> None:
    text = "import jax\n" + HOW[how].format(literal(WITH_IMPORTS[code], how))
    assert told_in(text)


@pytest.mark.parametrize("text", OF_THE_MODULE)
def test_code_that_is_run_with_the_names_of_its_module(text: str) -> None:
    assert told_in(text + "import jax\n")


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("code", WITH_KEYWORDS)
def test_keywords_that_went_in_code_with_its_own_imports(code: str, how: str) -> None:
    text = "import jax.numpy as jnp\n" + HOW[how].format(literal(WITH_KEYWORDS[code], how))
    result = modernize_text(text)
    (left,) = (each for each in result.left if each.text.endswith("="))
    assert left.text in ("a_max=", "initial=")
    assert text.splitlines()[left.line - 1][left.column - 1 :].startswith(left.text)


@pytest.mark.parametrize("text", KEYWORDS_OF_THE_MODULE)
def test_keywords_that_went_in_code_with_the_names_of_its_module(text: str) -> None:
    (line,) = told_in(f"import jax.numpy as jnp\n{text}")
    assert "=" in text.splitlines()[line - 2]


@pytest.mark.parametrize("text", NO_KEYWORDS)
def test_other_keywords_in_code_are_not_told(text: str) -> None:
    assert not told_in(f"import jax.numpy as jnp\nimport numpy as np\n{text}")


TYPES_HEAD = (
    "import jax, typing\nimport jax.numpy as jnp\nfrom jax.random import KeyArray\nfrom typing import cast\n"
    "from jaxtyping import Float\n"
)


@pytest.mark.parametrize("text", TYPES)
def test_types_in_strings_outside_of_annotations(text: str) -> None:
    assert TYPES_HEAD.count("\n") + 1 in told_in(f"{TYPES_HEAD}{text}\n")


@pytest.mark.parametrize("text", NO_TYPES)
def test_other_strings_are_no_types(text: str) -> None:
    assert TYPES_HEAD.count("\n") + 1 not in told_in(f"{TYPES_HEAD}{text}\n")


@pytest.mark.parametrize("text", (HALF, *BESIDE))
def test_code_beside_other_text(text: str) -> None:
    assert told_in("import jax\n" + text)


@pytest.mark.parametrize("text", NONE)
def test_other_names_are_not_told(text: str) -> None:
    assert not told_in(text)


def test_labels_of_strings_are_reported_where_they_change() -> None:
    text = (
        "import jax\nfrom jax import tree_map as m\n\n\ndef f(x):\n"
        '    return (\n        f"{jax.tree_map(abs, x)=}",\n        f"{m(abs, x)=}",\n'
        '        f"{x} {(jax.tree_map) = !r:>9}",\n'
        '        f"jax.tree_map= {jax.tree_map}",\n        f"{jax.tree_map(abs, x)}={x=}",\n    )\n'
    )
    result = modernize_text(text)
    assert 'f"{jax.tree.map(abs, x)=}"' in result.result.decode()
    shown = "the string shows this text, so that what it shows changes once `jax.tree_map` is rewritten"
    written = "it stands in a string; edit it by hand if code runs it"
    assert [(left.line, left.reason) for left in sorted(result.left)] == [(7, shown), (9, shown), (10, written)]


@pytest.mark.parametrize(
    ("text", "is_told"),
    [
        ('from jax.experimental.pjit import pjit\nf"{pjit(f)=}"\n', True),
        ('from jax import config as c\nimport jax.numpy as jnp\nf"{jnp.clip(c, a_min=0)=}"\n', True),
        ('import jax\nx = jax.numpy.ones(3)\nf"{x.device_buffer=}"\n', True),
        ('import jax\nx = jax.numpy.ones(3)\nf"{x.device()=}"\n', True),
        ('from jax.tree_util import tree_multimap\nf"{tree_multimap(f, x)=}"\n', False),
        ('import jax.numpy as jnp\njnp.product(x)\nf"{jnp.clip(x, min=0)=}, {x.device=}"\n', False),
    ],
)
def test_names_keywords_and_members_change_labels(text: str, *, is_told: bool) -> None:
    result = modernize_text(text)
    line = text.count("\n")
    was_shown, is_shown = (data.decode().splitlines()[-1] for data in (result.original, result.result))
    assert (was_shown != is_shown) == is_told
    assert any("the string shows this text" in left.reason for left in result.left if left.line == line) == is_told


def test_names_of_the_project_that_text_takes_an_old_name_by() -> None:
    core = (
        "import jax\nfrom jax.core import get_aval\nfrom jax.experimental.pjit import pjit\n"
        "from jax.random import KeyArray\n\n\ndef f(x: KeyArray):\n    return pjit(get_aval)(jax.tree_map(abs, x))\n"
    )
    test = (
        'def test(mocker):\n    mocker.patch("compat.core.KeyArray")\n    mocker.patch("compat.core:pjit")\n'
        '    mocker.patch("compat.core.jax.tree_map")\n    mocker.patch("compat.core.get_aval")\n'
        '    mocker.patch("compat.core.f")\n    mocker.patch("other.core.KeyArray")\n'
    )
    files = {"compat/__init__.py": b"", "compat/core.py": core.encode(), "test_core.py": test.encode()}
    results = {result.path: result for result in modernize_project(source_files(files), REGISTRY)}
    assert "KeyArray" not in results["compat/core.py"].result.decode()
    assert [(left.line, left.name) for left in sorted(results["test_core.py"].left)] == [
        (2, "jax.random.KeyArray"),
        (3, "jax.experimental.pjit.pjit"),
        (4, "jax.tree_map"),
    ]
