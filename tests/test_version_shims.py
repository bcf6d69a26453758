"""Names that are chosen by the version of JAX are left alone, and what not each of them takes is reported."""

from __future__ import annotations

import pytest
from fixture_files import source_files

from mmmodernize.registry import ModernizeRegistry
from mmmodernize.rewrite import modernize_project

SHIM = (
    "try:\n    from jax import shard_map\nexcept ImportError:\n    from jax.experimental.shard_map import shard_map\n"
)
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
            True,
        ),
    ],
    ids=["try", "condition", "attribute", "import in a try"],
)
def test_nothing_guards_a_use_whose_import_fails_before(text: str, is_left: bool) -> None:
    (result,) = modernize_project(source_files({"a.py": text.encode()}), ModernizeRegistry())
    assert is_left == any("already" in item.reason for item in result.left)
    assert is_left != (result.changed or bool(result.refusals))


@pytest.mark.parametrize(
    ("test", "taken"),
    [
        ("jax.__version_info__ >= (0, 4, 26)", True),
        ("jax.__version_info__ < (0, 4, 26)", False),
        ("versiontuple(jax.__version__) > (0, 5)", True),
        ("Version(jax.__version__) < Version('0.5.1')", False),
        ("jax.__version_info__ >= (0, 13)", False),
        ("jax.__version_info__ >= (0, 12, 1)", None),
        ("jax.__version__ >= '0.4.26'", None),
        ("jax.__version_info__ >= (0, 4, 26) and x", None),
    ],
)
def test_a_branch_that_todays_jax_takes_is_rewritten(test: str, taken: bool | None) -> None:
    text = f"import jax\nif {test}:\n    f = jax.tree_map\nelse:\n    f = jax.tree_multimap\n"
    (result,) = modernize_project(source_files({"a.py": text.encode()}), ModernizeRegistry())
    left = {item.line for item in result.left}
    assert left == ({3, 5} if taken is None else {5} if taken else {3})


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
