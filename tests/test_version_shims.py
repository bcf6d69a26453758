"""Names that are chosen by the version of JAX are left alone, and what not each of them takes is reported."""

from __future__ import annotations

import pytest
from fixture_files import modernize_text, source_files

from mmmodernize.registry import ModernizeRegistry
from mmmodernize.rewrite import modernize_project
from mmrewrite.project.facts import Loader

SHIM = (
    "try:\n    from jax import shard_map\nexcept ImportError:\n    from jax.experimental.shard_map import shard_map\n"
)


def loader(files: dict[str, bytes]) -> Loader:
    """The bytes of files by their places, and what the folder of them has."""
    places = {f"./{path}": data for path, data in files.items()}
    folder = "\n".join(path.removesuffix(".py") for path in files).encode()
    return (places | {"./": folder}).get


CHOSEN: dict[str, dict[str, str]] = {
    "call": {"a.py": f"{SHIM}shard_map(f, check_rep=False)  # old\n"},
    "partial": {"a.py": f"import functools\n{SHIM}@functools.partial(shard_map, auto=x)  # old\ndef f(x): pass\n"},
    "condition": {
        "a.py": "import jax\nif hasattr(jax, 'shard_map'):\n    s = jax.shard_map\n"
        "else:\n    from jax.experimental.shard_map import shard_map as s\ns(f, check_rep=True)  # old\n"
    },
    "another file": {"compat.py": SHIM, "a.py": "from compat import shard_map as s\ns(f, check_rep=False)  # old\n"},
    "module": {"compat.py": SHIM, "a.py": "import jax, compat\ncompat.shard_map(f, check_rep=False)  # old\n"},
    "another function": {
        "a.py": "try:\n    from jax.experimental.pjit import pjit\nexcept ImportError:\n"
        "    from jax import jit as pjit\n"
        "pjit(f, in_axis_resources=None)  # old\n"
    },
    "keyword of today": {"a.py": f"{SHIM}shard_map(f, check_vma=False)\n"},
    "chosen as well": {
        "a.py": f"import jax\n{SHIM}if jax.__version__ < '0.6':\n    shard_map(f, check_rep=False)\n"
        "else:\n    shard_map(f, check_vma=False)\n"
    },
}


@pytest.mark.parametrize("files", CHOSEN.values(), ids=CHOSEN)
def test_keywords_of_one_release_are_told_where_the_function_is_chosen_by_it(files: dict[str, str]) -> None:
    results = modernize_project(
        source_files({path: text.encode() for path, text in files.items()}), ModernizeRegistry()
    )
    for result in results:
        old = {number for number, line in enumerate(files[result.path].splitlines(), 1) if line.endswith("# old")}
        assert {item.line for item in result.refusals if "chosen by the version" in item.reason} == old
        assert not result.changed


@pytest.mark.parametrize(
    ("text", "is_left"),
    [
        ("from jax.experimental.maps import Mesh\ntry:\n    M = Mesh\nexcept AttributeError:\n    M = None\n", False),
        ("from jax.interpreters.xla import lower_fun as f\ng = f if hasattr(f, 'x') else None\n", False),
        ("import jax\ntry:\n    M = jax.core.unit\nexcept AttributeError:\n    M = None\n", True),
        (
            "try:\n    from jax.core import unit\nexcept ImportError:\n    raise SystemExit\n"
            "try:\n    M = unit\nexcept AttributeError:\n    M = None\n",
            False,
        ),
    ],
    ids=["try", "condition", "attribute", "import in a try"],
)
def test_nothing_guards_a_use_whose_import_fails_before(text: str, is_left: bool) -> None:
    result = modernize_text(text)
    assert is_left == any("already" in item.reason for item in result.left)
    assert is_left != (result.changed or bool(result.refusals))


COMPAT = (
    "import jax\nfrom packaging.version import Version\n"
    "def at_least(text):\n    return Version(jax.__version__) >= Version(text)\n"
    "NEW = False\nif jax.__version_info__ >= (0, 5):\n    NEW = True\n"
)
CONSTANTS = (
    "import compat\nimport jax\nimport sys\nimport pytest\nfrom importlib.metadata import version\n"
    "from importlib.util import find_spec\nfrom distutils.version import LooseVersion\n"
    "from packaging import version as v\n"
    "NEW = jax.__version_info__ >= (0, 5)\nOLD = LooseVersion(jax.__version__) < LooseVersion('0.5')\nDEBUG = False\n"
    "try:\n    from jax import set_mesh\n    FOUND = True\nexcept ImportError:\n    FOUND = False\n"
    "def at_least(*release):\n    now = tuple(int(part) for part in jax.__version__.split('.'))\n"
    "    return now[:len(release)] >= release\n"
    "class Versions:\n    @staticmethod\n    def has(minor=None):\n        if minor is None:\n            return True\n"
    "        return jax.__version_info__[1] >= minor\n"
    "def numbers(text):\n    found = []\n    for each in text.split('.'):\n        found.append(int(each))\n"
    "    return found\n"
)


@pytest.mark.parametrize(
    ("test", "taken"),
    [
        ("jax.__version_info__ >= (0, 4, 26)", True),
        ("jax.__version_info__ < (0, 4, 26)", False),
        ("versiontuple(jax.__version__) > (0, 5)", True),
        ("Version(jax.__version__) < Version('0.5.1')", False),
        ("jax.__version_info__ >= (0, 13)", False),
        ("jax.__version_info__ >= (0, 12, 1)", None),
        ("(0, 5) <= jax.__version_info__", True),
        ("(0, 4) <= jax.__version_info__ < (0, 5)", False),
        ("jax.__version_info__[1] >= 5", True),
        ("not jax.__version_info__[:2] < (0, 5)", True),
        ("v.parse(jax.__version__).minor < 5", False),
        ("LooseVersion(jax.version.__version__) >= '0.5'", True),
        ("parse_version(version('jax')) >= parse_version('0.5')", True),
        ("tuple(map(int, jax.__version__.split('.')[:2])) >= (0, 5)", True),
        ("[int(v) for v in jax.__version__.split('.')] < [0, 5]", False),
        ("jax.__version__.startswith('0.4.')", False),
        ("hasattr(jax, 'set_mesh')", True),
        ("not hasattr(jax.core, 'ConcreteArray')", True),
        ("getattr(jax, 'tree_map', None) is None", True),
        ("'tree_map' in dir(jax)", False),
        ("find_spec('jax.experimental.maps')", False),
        ("sys.version_info < (3, 9)", False),
        ("NEW and not OLD", True),
        ("FOUND", True),
        ("at_least(0, 5)", True),
        ("at_least(0, 13)", False),
        ("compat.at_least('0.5')", True),
        ("compat.NEW", True),
        ("Versions.has(13)", False),
        ("numbers(jax.__version__) >= [0, 5]", None),
        ("x and OLD", False),
        ("x or NEW", True),
        ("hasattr(jax, name)", None),
        ("hasattr(jax.experimental, 'pallas')", None),
    ],
)
def test_a_branch_that_todays_jax_takes_is_rewritten(test: str, taken: bool | None) -> None:
    text = (
        f"{CONSTANTS}if {test}:\n    f = jax.tree_map\nelse:\n    f = jax.tree_multimap\n"
        f"def g(f):\n    if {test}:\n        return f\n    return jax.tree_map\n"
        f"class T:\n    @pytest.mark.skipif({test}, reason='')\n    def test_it(self):\n        jax.tree_map(f)\n"
        f"({test}) and jax.tree_map\n"
    )
    files = {"a.py": text.encode(), "compat.py": COMPAT.encode()}
    result, *_ = modernize_project(source_files(files), ModernizeRegistry(), load=loader(files))
    left = [item for item in result.left if "already chooses" in item.reason]
    settled = {item.line - len(CONSTANTS.splitlines()) for item in left if item.is_settled}
    others = {item.line - len(CONSTANTS.splitlines()) for item in left if not item.is_settled}
    assert others == ({2, 4, 12, 13} if taken is None else set())
    assert settled == {None: set(), True: {4, 8, 12}, False: {2, 13}}[taken]


@pytest.mark.parametrize("test", ["sys.version_info >= (3, 12)", "x and NEW", "not OLD or x", "DEBUG", "DEBUG and NEW"])
def test_what_a_release_does_not_decide_guards_nothing(test: str) -> None:
    text = f"{CONSTANTS}if {test}:\n    f = jax.tree_map\n"
    result, *_ = modernize_project(source_files({"a.py": text.encode()}), ModernizeRegistry())
    assert result.changed
    assert not result.left


@pytest.mark.parametrize(
    ("test", "line"), [("jax.__version__ < '0.5'", 3), ("NEW >= (0, 5) and jax.__version__ > '0.5'", 5)]
)
def test_versions_that_are_compared_as_text_take_the_branch_that_was_not_meant(test: str, line: int) -> None:
    text = f"import jax\nif {test}:\n    f = jax.tree_map\nelse:\n    f = jax.tree_map\n"
    result = modernize_text(text)
    assert [item.line for item in result.refusals] == [line]
    assert [item.line for item in result.left] == [8 - line]
    assert not result.changed


GONE, THERE = "from jax.core import ConcreteArray", "from jax import set_mesh"


@pytest.mark.parametrize(
    ("text", "is_work"),
    [
        (f"try:\n    {GONE}\nexcept ImportError:\n    pass\n", False),
        (f"try:\n    {GONE}\nexcept ImportError:\n    from jax.core import unit\n", True),
        (f"try:\n    {GONE}\nexcept ImportError:\n    raise\n", True),
        (f"try:\n    {GONE}\nexcept AttributeError:\n    pass\n", True),
        (f"try:\n    {GONE}\nexcept ModuleNotFoundError:\n    pass\n", True),
        (
            f"try:\n    {GONE}\nexcept AttributeError:\n    from jax.core import unit\nexcept Exception:\n    pass\n",
            False,
        ),
        (f"try:\n    {THERE}\nexcept ImportError:\n    {GONE}\n", False),
        (f"try:\n    {THERE}\nexcept ImportError:\n    pass\nelse:\n    {GONE}\n", True),
        (f"try:\n    {THERE}\nexcept ImportError:\n    pass\nfinally:\n    {GONE}\n", True),
        (f"try:\n    import torch\nexcept ImportError:\n    {GONE}\n", True),
        (
            f"try:\n    {GONE}\nexcept ImportError:\n"
            "    try:\n        from jax.core import unit\n    except ImportError:\n        pass\n",
            False,
        ),
        ("import jax\ntry:\n    a = jax.core.unit\nexcept AttributeError:\n    a = jax.core.ConcreteArray\n", True),
        ("import jax\ntry:\n    a = jax.core.unit\nexcept ImportError:\n    a = None\n", True),
        (f"import contextlib\nwith contextlib.suppress(ImportError):\n    {GONE}\n", False),
        (f"import contextlib\nwith contextlib.suppress(ValueError):\n    {GONE}\n", True),
        ("import jax\nif not hasattr(jax, 'tree_map'):\n    jax.tree_map = jax.tree.map\n", False),
        (f"from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    {GONE}\n", True),
    ],
)
def test_what_fails_today_is_refused_and_what_never_runs_is_not(text: str, is_work: bool) -> None:
    result = modernize_text(text)
    assert is_work == (result.changed or bool(result.refusals))


LAYOUT = "import jax\nfrom jax.experimental import layout\nif jax.__version_info__ >= {}:\n    {}\nelse:\n    {}\n"


@pytest.mark.parametrize(
    ("release", "new", "old", "is_rewritten"),
    [
        ("(0, 6, 3)", "L = layout.Layout", "L = layout.DeviceLocalLayout", False),
        ("(0, 7)", "make = layout.Layout((1, 0))", "make = layout.DeviceLocalLayout((1, 0))", False),
        ("(0, 7)", "F = layout.Format", "F = layout.Layout", False),
        ("(0, 4, 3)", "F = layout.Layout(layout.DeviceLocalLayout((1, 0)), s)", "F = None", True),
    ],
)
def test_a_branch_that_a_change_of_meaning_begins_means_what_it_says(
    release: str, new: str, old: str, is_rewritten: bool
) -> None:
    files = source_files({"a.py": LAYOUT.format(release, new, old).encode()})
    (result,) = modernize_project(files, ModernizeRegistry())
    assert (result.changed, result.refusals, result.failure) == (is_rewritten, (), None)
