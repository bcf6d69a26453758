"""Files without an old name of their own that pass a module on: each is read, however it comes by the module."""

from __future__ import annotations

import json

import pytest
from fixture_files import source_files

from mmmodernize.names.name_index import may_use_old_names, passes_modules
from mmmodernize.registry import ModernizeRegistry
from mmmodernize.rewrite import modernize_project

REGISTRY = ModernizeRegistry()

# Another file reads an old name of what it is given.
USER = "def use(j):\n    return j.tree_map(abs, 1)  # of jax\n"
USER_OF_PART = "def use(j):\n    return j.tree_multimap(abs, 1)  # of jax.tree_util\n"
PASSED = {
    "import": "import jax\nuse(jax)\n",
    "second of a list": "import os, jax\nuse(jax)\n",
    "first of a list": "import jax, os\nuse(jax)\n",
    "renamed in a list": "import os as o, jax as j, sys\nuse(j)\n",
    "behind a semicolon": "import os; import jax\nuse(jax)\n",
    "renamed in capitals": "import jax as J\nuse(J)\n",
    "try": "try:\n    import jax\nexcept ImportError:\n    jax = None\nuse(jax)\n",
    "try on a line": "try: import jax\nexcept ImportError: jax = None\nuse(jax)\n",
    "condition on a line": "if flag: import jax\nuse(jax)\n",
    "function": "def f():\n    import jax\n    use(jax)\n",
    "function on a line": "def f(): import jax; use(jax)\n",
    "continued line": "import os, \\\n    jax\nuse(jax)\n",
    "continued keyword": "import \\\n    jax\nuse(jax)\n",
    "tab": "import\tjax\nuse(jax)\n",
    "form feed": "\fimport jax\nuse(jax)\n",
    "byte order mark": "\N{ZERO WIDTH NO-BREAK SPACE}import jax\nuse(jax)\n",
    "lines of Windows": "import os, \\\r\n    jax\r\nuse(jax)\r\n",
    "class": "class C:\n    import jax\nuse(C)\n",
    "class below a comment": "class C:\n# of ours\n    import jax\nuse(C)\n",
    "class below a docstring": 'class C:\n    """Ours,\nto hold modules.\n    """\n    import jax\nuse(C)\n',
    "class with bases on lines": "class C(\n    object,\n):\n    import jax\nuse(C)\n",
    "condition in a class": "class C:\n    if flag:\n        import jax\nuse(C)\n",
    "class on a line": "class C: x = 1; import jax\nuse(C)\n",
    "import_module": "import importlib\nuse(importlib.import_module('jax'))\n",
    "import_module renamed": "from importlib import import_module as get\nuse(get('jax'))\n",
    "__import__": "use(__import__('jax'))\n",
    "table of modules": "import sys\nuse(sys.modules['jax'])\n",
    "renamed table of modules": "from sys import modules as m\nuse(m['jax'])\n",
    "resolve_name": "import pkgutil\nuse(pkgutil.resolve_name('jax'))\n",
    "importorskip": 'import pytest\nj = pytest.importorskip("jax")\nuse(j)\n',
    "conditional": "if flag:\n    import jax as j\nelse:\n    import numpy as j\nuse(j)\n",
    "two modules": "if flag:\n    import jax as use_it\nelse:\n    import flax as use_it\nuse(use_it)\n",
    "module of the project": "from compat import jax\nuse(jax)\n",
    "attribute of a module of the project": "import compat\nuse(compat.jax)\n",
    "global table": "import jax\nuse(globals()['jax'])\n",
}
PASSED_PART = {
    "brackets": "from jax import (numpy, tree_util)\nuse(tree_util)\n",
    "brackets over lines": "from jax import (\n    numpy,\n    tree_util as t,\n)\nuse(t)\n",
    "comment in brackets": "from jax import (  # of ours)\n    numpy,  # and\n    tree_util,\n)\nuse(tree_util)\n",
    "brackets without a space": "from jax import(tree_util)\nuse(tree_util)\n",
    "continued list": "from jax import numpy, \\\n    tree_util\nuse(tree_util)\n",
    "continued from": "from \\\n    jax import tree_util\nuse(tree_util)\n",
    "renamed in capitals": "import jax.tree_util as T\nuse(T)\n",
    "star": "from jax import *\nuse(tree_util)\n",
    "star of a star": "from stars import *  # of jax\nuse(tree_util)\n",
    "attribute": "import jax.tree_util\nuse(jax.tree_util)\n",
    "attribute on two lines": "import jax.tree_util\nx = (jax\n    .tree_util)\nuse(x)\n",
    "attribute of another name": "import jax as j\nuse(j.tree_util)\n",
    "text": "import importlib\nuse(importlib.import_module('jax.tree_util'))\n",
}


def lines_told(files: dict[str, bytes], path: str) -> set[int]:
    results = modernize_project(source_files(files), REGISTRY, load=lambda path: files.get(path.removeprefix("./")))
    assert [result.failure for result in results if result.failure] == []
    return {item.line for result in results if result.path == path for item in result.left}


@pytest.mark.parametrize(
    ("text", "user"),
    [
        *(pytest.param(text, USER, id=name) for name, text in PASSED.items()),
        *(pytest.param(text, USER_OF_PART, id=f"part: {name}") for name, text in PASSED_PART.items()),
    ],
)
def test_a_file_that_only_passes_a_module_on_is_read(text: str, user: str) -> None:
    assert not may_use_old_names(text.encode())
    main = text.encode() + b"from user import use\n"
    files = {
        "compat.py": b"import jax\n",
        "stars.py": b"from jax import *\n",
        "user.py": user.encode(),
        "main.py": main,
    }
    assert passes_modules(files["main.py"])
    assert lines_told(files, "user.py") == {2}


def test_a_notebook_that_only_passes_a_module_on_is_read() -> None:
    cell = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None}
    lines = ["from user import use\n", "import jax\n", "use(jax)"]
    notebook = {"cells": [{**cell, "source": lines}], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    files = {"user.py": USER.encode(), "main.ipynb": json.dumps(notebook, indent=1).encode()}
    assert lines_told(files, "user.py") == {2}


@pytest.mark.parametrize(
    "text",
    [
        "import numpy as np\nuse(np)\n",
        "import jax\nx = jax.numpy.ones(3)\n",
        "import jax.numpy as jnp\nx = jnp.ones(3)\nuse(x)\n",
        "from jax import (\n    numpy,\n    lax as other,\n)\nx = numpy.ones(3) + other.exp(1)\n",
        "def f():\n    import jax\n    return jax.devices()\n",
        "# with jax. And more\nimport os\nuse(os)\n",
    ],
)
def test_files_that_keep_their_modules_are_not_read_for_them(text: str) -> None:
    assert not passes_modules(text.encode())
