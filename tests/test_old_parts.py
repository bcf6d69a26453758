"""The index of parts, and names of another meaning: each row is rewritten or reported at its line."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from fixture_files import modernize_text, source_files
from wheels import write_wheel

from mmmodernize.modules.project_names import ProjectAge
from mmmodernize.names.changed_meanings import CHANGED_MEANINGS
from mmmodernize.names.part_index import (
    PARTS_FILE,
    changed_defaults,
    changed_places,
    methods_of_classes,
    moved_calls,
    new_requirements,
    old_flags,
    old_keywords,
    old_members,
)
from mmmodernize.registry import ModernizeRegistry
from mmmodernize.rewrite import modernize_project
from mmmodernize.settings import ModernizeSettings
from mmrewrite.results import Rewrite
from mmrewrite.source.text import SourceText

ROOT = Path(__file__).resolve().parents[1]
REGISTRY = ModernizeRegistry()
# Lines of programs and what each of them is about.
Lines = list[tuple[str, str]]


PartsIn = Callable[[Mapping[str, Mapping[str, str]]], dict[str, Any]]


@pytest.fixture
def parts_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PartsIn:
    """Reads the parts of wheels, given the files of each release. Tests may import the tools as long as it is there."""
    monkeypatch.syspath_prepend(ROOT / "tools")
    from index_names import Release
    from index_parts import parts_of

    def read(releases: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
        wheels = {version: write_wheel(tmp_path, version, texts) for version, texts in releases.items()}
        return {version: parts_of(Release(wheel, "jax")) for version, wheel in wheels.items()}

    return read


def silent(lines: Lines, head: str = "", settings: ModernizeSettings | None = None) -> list[str]:
    """What programs of these lines, each with an import of the package before it, say nothing about."""
    files, about = {}, {}
    for start in range(0, len(lines), 50):
        part = lines[start : start + 50]
        packages = sorted({text.partition("import ")[2].partition(";")[0] for _, text in part})
        rest = [text.partition("; ")[2] for _, text in part]
        text = "\n".join([*(f"import {package}" for package in packages), head, *rest]) + "\n"
        path = f"part_{start}.py"
        files[path] = text.encode()
        about[path] = {len(packages) + 2 + number: name for number, (name, _) in enumerate(part)}
    # Names of all releases make no program of one age.
    with mock.patch.object(ProjectAge, "_newest", {}):
        results = modernize_project(source_files(files), REGISTRY, settings=settings or ModernizeSettings())
    assert [result.failure for result in results if result.failure] == []
    return [name for result in results for line, name in about[result.path].items() if line not in seen(result)]


def seen(result: Rewrite) -> set[int]:
    """The lines of a program that are edited or reported."""
    source = SourceText.decode(result.original)
    found = {item.line for item in (*result.refusals, *result.left)}
    return found | {source.position(edit.start)[0] for edit in result.edits}


def line(name: str, text: str) -> str:
    """A line that uses a name, with an import of its package."""
    return f"import {name.partition('.')[0]}; {text}"


# Another codemod has the arguments of these.
OF_OTHERS = frozenset(
    (
        "flax.nnx.Optimizer",
        "jax.experimental.layout.Layout",
        "jax.experimental.pjit.pjit",
        "jax.experimental.shard_map.shard_map",
        "jax.make_mesh",
    )
)


def called(owner: str) -> str:
    """What calls a function, or a method of an object whose class is seen."""
    holder, _, own = owner.rpartition(".")
    return f"{holder}().{own}" if holder.rpartition(".")[2][:1].isupper() else owner


def rows(index: Mapping[str, Mapping[str, object]]) -> Lines:
    return [(owner, part) for owner, parts in index.items() for part in parts]


FORMS = {
    "call": "value = {}(",
    "partial": "value = functools.partial({}, ",
    "call of a partial": "value = functools.partial({})(",
    "call of a transformed function": "value = jax.jit(jax.vmap({}, in_axes=1))(",
}


@pytest.mark.parametrize("form", FORMS)
def test_no_keyword_is_passed_over(form: str) -> None:
    begin = FORMS[form]
    lines = [
        (f"{owner} {part}", line(owner, f"{begin.format(owner)}{part}=None)"))
        for owner, part in rows(old_keywords())
        if called(owner) == owner
    ]
    # What lost keywords to another codemod is tested with that one.
    lines = [each for each in lines if not each[0].startswith(("jax.experimental.pjit.pjit ", "jax.make_mesh "))]
    assert len(lines) > 300
    assert silent(lines, "import functools, jax") == []


def test_calls_by_a_name_of_what_a_partial_or_a_transformation_makes_are_told() -> None:
    text = (
        "import functools, jax, optax\nimport jax.numpy as jnp\n"
        "clip = functools.partial(jnp.clip, a_min=0)\nclip(x, a_max=1)\n"
        "fast = jax.jit(jax.vmap(jnp.clip))\nfast(x, 0, a_max=1)\n"
        "make = functools.partial(jax.ShapeDtypeStruct, (2,))\nmake(float, None)\nmake(float)\n"
        "class C:\n    def __init__(self):\n        self.clip = jax.jit(functools.partial(jnp.clip, a_min=0))\n"
        "    def f(self, x): return self.clip(x, a_max=1)\n"
    )
    result = modernize_text(text)
    after = text.replace("a_min", "min").replace("a_max", "max").encode()
    assert result.result == after
    assert [item.line for item in result.refusals] == [7]


def test_no_place_is_passed_over() -> None:
    lines = []
    for owner, changes in changed_places().items():
        if owner not in OF_OTHERS:
            given = ", ".join(["0"] * min(changes[0].first + 1, len(changes[0].was)))
            lines.append((owner, line(owner, f"value = {called(owner)}({given})")))
    assert len(lines) > 300
    assert silent(lines, settings=ModernizeSettings(is_upgrade=True)) == []


def test_no_new_requirement_is_passed_over() -> None:
    lines = [
        (owner, line(owner, f"value = {called(owner)}({', '.join(['0'] * (asked[0].place or 0))})"))
        for owner, asked in new_requirements().items()
        if owner not in OF_OTHERS
    ]
    assert len(lines) > 100
    assert silent(lines, settings=ModernizeSettings(is_upgrade=True)) == []


def test_no_method_that_is_called_by_its_class_is_passed_over() -> None:
    """The object is given first there, but to methods of classes."""
    lines = []
    for owner in {**changed_places(), **new_requirements()}:
        if called(owner) != owner:
            changes, asked = changed_places().get(owner), new_requirements().get(owner)
            count = changes[0].first + 1 if changes else (asked[0].place or 0) if asked else 0
            given = ", ".join(["0"] * (count + (owner not in methods_of_classes())))
            lines.append((owner, line(owner, f"value = {owner}({given})")))
    assert len(lines) > 80
    assert silent(lines, settings=ModernizeSettings(is_upgrade=True)) == []


def test_no_member_that_is_read_of_its_class_is_passed_over() -> None:
    lines = [
        (f"{owner}.{part}", line(owner, f"value = {owner}.{part}"))
        for owner, parts in old_members().items()
        for part in parts
    ]
    assert len(lines) > 80
    assert silent(lines) == []


def test_methods_that_are_called_by_their_classes_as_today_are_left_alone() -> None:
    text = (
        "import flax.linen as nn\nfrom flax import nnx\nimport orbax.checkpoint as ocp\n"
        "nn.LayerNorm.__call__(norm, x), nn.MultiHeadDotProductAttention.__call__(a, q, k, v)\n"
        "nnx.Rngs.fork(rngs), ocp.CheckpointManager.wait_until_finished(manager)\n"
    )
    settings = ModernizeSettings(is_upgrade=True)
    (result,) = modernize_project(source_files({"a.py": text.encode()}), REGISTRY, settings=settings)
    assert (result.changed, result.refusals, result.left) == (False, (), ())


def test_a_keyword_that_jit_names_as_well_is_refused() -> None:
    text = (
        "import jax\nimport jax.numpy as jnp\nclip = jax.jit(jnp.clip, static_argnames=('a_min',))\n"
        "clip(x, a_min=1)\nclip(x, a_max=1)\n"
    )
    result = modernize_text(text)
    assert [item.line for item in result.refusals] == [4]
    assert result.result.decode() == text.replace("a_max", "max")


def test_save_takes_what_numpy_takes() -> None:
    text = (
        "import jax.numpy as jnp\njnp.save('f', x, fix_imports=True), jnp.save('f', x, False)\n"
        "jnp.load('f', fix_imports=True)\njnp.save('f', x, False, True)\n"
    )
    result = modernize_text(text)
    assert result.result.decode() == text.replace(", fix_imports=True), jnp.s", "), jnp.s")
    assert [item.line for item in result.refusals] == [4]


def test_no_changed_default_is_passed_over() -> None:
    lines = [(owner, line(owner, f"value = {called(owner)}()")) for owner in changed_defaults()]
    assert {"flax.nnx.scan", "optax.contrib.prodigy", "orbax.checkpoint.CheckpointManagerOptions"} <= {
        *changed_defaults()
    }
    assert silent(lines, settings=ModernizeSettings(is_upgrade=True)) == []


def test_calls_that_give_what_has_another_default_are_left_alone() -> None:
    text = (
        "import functools, optax, jax.numpy as jnp\nfrom flax import nnx\nimport orbax.checkpoint as ocp\n"
        "optax.contrib.prodigy(0.1), optax.contrib.prodigy(learning_rate=0.1), ocp.AsyncOptions(timeout_secs=9)\n"
        "jnp.einsum('i', x), jnp.astype(x, int)\n"
        "nnx.scan(f, in_axes=0, out_axes=0)\n"
        "@functools.partial(nnx.scan, in_axes=0, out_axes=0)\ndef f(x): pass\n"
        "@nnx.scan(in_axes=0, out_axes=0)\ndef f(x): pass\n"
    )
    more = "@functools.partial(nnx.scan, in_axes=0)\ndef f(x): pass\n@nnx.scan\ndef f(x): pass\n"
    settings = ModernizeSettings(is_upgrade=True)
    (result,) = modernize_project(source_files({"a.py": (text + more).encode()}), REGISTRY, settings=settings)
    assert (result.changed, result.refusals) == (False, ())
    assert [item.line for item in result.left] == [text.count("\n") + 1, text.count("\n") + 3]


def test_no_keyword_of_a_method_is_passed_over() -> None:
    lines = [
        (f"{owner} {part}", line(owner, f"value = {called(owner)}({part}=None)"))
        for owner, part in rows(old_keywords())
        if called(owner) != owner
    ]
    assert len(lines) > 30
    assert silent(lines) == []


FLAG_USES = {
    "for name in ('jax_array',):\n    jax.config.update(name, True)": "refused",
    "def put(name):\n    setattr(jax.config, name, 1)\nput('jax_array')": "refused",
    "for name, value in {'jax_array': True}.items():\n    jax.config.update(name, value)": "refused",
    "setattr(jax.config, 'jax_array', True)": "refused",
    "from lib import put\nput('jax_array', True)": "left",
    "from lib import names\nfor name in names:\n    jax.config.update(name, 1)\nmore = ['jax_array']": "left",
    "from lib import configure\nconfigure({'jax_array': True})": "left",
    "from lib import configure, value\nconfigure(**{'jax_array': value})": "left",
    "from lib import settings\nsettings['jax_array'] = True": "left",
    "from lib import turn_on\nturn_on(['jax_array'])": "left",
    "from lib import turn_on\nturn_on('jax_array')": "left",
    "from lib import turn_on\nNAME = 'jax_array'\nturn_on(NAME)": "left",
    "tree = {'jax_array': jax.numpy.zeros(3)}": "silent",
    "def read(tree):\n    return tree['jax_array'] + tree.get('jax_array')": "silent",
}


@pytest.mark.parametrize("text", FLAG_USES)
def test_a_string_is_a_flag_where_it_comes_to_a_configuration(text: str) -> None:
    result = modernize_text(f"import jax\n{text}\n")
    told = "refused" if result.refusals else "left" if result.left else "silent"
    assert (told, result.changed) == (FLAG_USES[text], False)


def calls_of_before() -> list[tuple[str, str]]:
    """Of each moved name the arguments with which its new name is not called."""
    found = []
    for old, today in moved_calls().items():
        whole = [f"{name}=0" for name in today.required]
        given = [", ".join([*whole, f"{keyword}=0"]) for keyword in sorted(today.lost)]
        # Two arguments of `ClosedJaxpr` are taken as before, by other names.
        same = 2 if old.endswith(".ClosedJaxpr") else today.same
        given += [", ".join(["0"] * (same + 1)), "*args"] if same is not None else []
        given += ["**words"] if today.lost else []
        given += [""] if today.required else []
        if old in REGISTRY["move_names"].moved:
            found += [(old, each) for each in given]
    return found


@pytest.mark.parametrize("form", ["{old}", "from {home} import {own} as f{n}; f{n}", "f{n} = {old}; f{n}"])
def test_no_moved_name_is_called_as_before_where_today_takes_less(form: str) -> None:
    """Each such call is refused, or has another keyword."""
    calls = calls_of_before()
    assert len(calls) > 60
    lines = ["import jax, optax, chex, orbax.checkpoint"]
    for number, (old, given) in enumerate(calls):
        home, _, own = old.rpartition(".")
        lines.append(f"{form.format(home=home, own=own, old=old, n=number)}({given})")
    (result,) = modernize_project(source_files({"a.py": "\n".join(lines).encode() + b"\n"}), REGISTRY)
    assert result.failure is None
    refused = {item.line for item in result.refusals}
    shift = result.result.count(b"\n") - len(lines)
    after = result.result.decode().splitlines()
    for number, (old, given) in enumerate(calls, 2):
        keyword = given.rpartition(" ")[2].partition("=")[0]
        line_after = after[number - 1 + shift]
        assert number in refused or f"{keyword}=" not in line_after.rpartition("(")[2], (old, given, line_after)


def test_calls_that_the_new_name_takes_are_moved() -> None:
    text = (
        "import optax\nfrom jax import core\nfrom jax.interpreters import batching\n"
        "from optax import maybe_update as m\n"
        "optax.global_norm(g), optax.global_norm(updates=g), m(inner, should_update_fn=f), m(inner, f)\n"
        "core.Var(aval=a), core.ClosedJaxpr(j, c), core.JaxprEqn(a, b, c, d, e, f, ctx=g)\n"
        "batching.moveaxis(x, 0, 1), batching.moveaxis(x, src=0, dst=1)\n"
    )
    result = modernize_text(text)
    assert result.refusals == ()
    assert result.result.decode() == (
        "import jax\nimport optax\nfrom jax.extend import core as jex_core\n"
        "from optax import conditionally_transform as m\n"
        "optax.tree.norm(g), optax.tree.norm(tree=g), m(inner, should_transform_fn=f), m(inner, f)\n"
        "jex_core.Var(aval=a), jex_core.ClosedJaxpr(j, c), jex_core.JaxprEqn(a, b, c, d, e, f, ctx=g)\n"
        "jax.numpy.moveaxis(x, 0, 1), jax.numpy.moveaxis(x, source=0, destination=1)\n"
    )


CELLS = "import flax.linen as nn\nimport functools\n"


@pytest.mark.parametrize(
    "text",
    [
        "nn.LSTMCell()",
        "nn.GRUCell(name='gru')",
        "nn.RNN(nn.OptimizedLSTMCell())",
        "nn.scan(nn.LSTMCell, variable_broadcast='params')()",
        "Scan = nn.scan(nn.LSTMCell, variable_broadcast='params')\nScan(name='x')",
        "nn.remat(nn.scan(nn.GRUCell))()",
        "nn.RNN(nn.LSTMCell(8), cell_size=8)",
        "def f(cell: nn.LSTMCell):\n    return cell.initialize_carry(key, (2,), 8)",
        "def f(cell):\n    return cell.initialize_carry(key, (2,), 8)",
        "def f(cell):\n    return cell.initialize_carry(key, batch_dims=(2,), size=8)",
        "class Cell(nn.RNNCellBase):\n    def initialize_carry(self, rng, batch_dims, size): pass",
        "nn.RNNCellBase.initialize_carry(key, (2,), 8)",
        "nn.LSTMCell.initialize_carry(key, (2,), 8)",
        "nn.recurrent.GRUCell.initialize_carry(key, (2,), 8)",
        "nn.softmax(x, initial=0)",
    ],
)
def test_recurrent_cells_of_before_are_told(text: str) -> None:
    result = modernize_text(f"{CELLS}{text}\n")
    assert {item.line for item in (*result.refusals, *result.left)} == {CELLS.count("\n") + 1 + text.count("\n")}
    assert not result.changed


def test_recurrent_cells_of_today_are_left_alone() -> None:
    text = (
        "nn.LSTMCell(8), nn.GRUCell(features=8), nn.LSTMCell(*sizes), nn.LSTMCell(**sizes)\n"
        "functools.partial(nn.LSTMCell, name='x')(8)\n"
        "nn.scan(nn.LSTMCell, variable_broadcast='params')(8), nn.scan(nn.LSTMCell)(features=8)\n"
        "nn.LSTMCell(8).initialize_carry(key, (2, 8)), nn.LSTMCell.initialize_carry(nn.LSTMCell(8), key, (2, 8))\n"
        "class Own(nn.Module):\n    def initialize_carry(self, a, b, c): pass\n"
        "    def f(self): return self.initialize_carry(1, 2, 3)\n"
        "class Cell(nn.RNNCellBase):\n    def initialize_carry(self, rng, input_shape):\n"
        "        return nn.LSTMCell.initialize_carry(self, rng, input_shape)\n"
        "cell = Cell()\nnn.RNNCellBase.initialize_carry(cell, key, (2,))\n"
    )
    result = modernize_text(f"{CELLS}{text}")
    assert (result.changed, result.refusals, result.left) == (False, (), ())


def test_no_member_is_passed_over() -> None:
    lines = [
        (f"{owner} {part}", line(owner, f"f_{number} = lambda: {owner}().{part}"))
        for number, (owner, part) in enumerate(rows(old_members()))
        if owner.rpartition(".")[2][:1].isupper()
    ]
    assert len(lines) > 250
    assert silent(lines) == []


@pytest.mark.parametrize(
    "use",
    ['jax.config.update("{}", 7)', 'jax.config.update("{}", {default})', "jax.config.{} = 7", "x = jax.config.{}"],
)
def test_no_flag_is_passed_over(use: str) -> None:
    flags = [each for each in old_flags().values() if each.package == "jax"]
    assert len(flags) > 30
    values = {flag.name: flag.default if flag.default in ("True", "False") else repr(flag.default) for flag in flags}
    assert silent([(name, f"import jax; {use.format(name, default=value)}") for name, value in values.items()]) == []


def test_no_variable_of_the_environment_is_passed_over() -> None:
    names = [name.upper() for name in old_flags()]
    assert silent([(name, f'import os; os.environ["{name}"] = "1"') for name in names]) == []


def test_no_changed_meaning_is_passed_over() -> None:
    for row in CHANGED_MEANINGS:
        keyword = "" if not row.keyword or row.keyword.endswith("=None") else f"{row.keyword}=True"
        arguments = ", ".join([*["x"] * row.arguments, *([keyword] if keyword else [])])
        for name in row.names:
            lines = [(name, line(name, f"value = {name}({arguments})"))]
            # A name that went in the first releases, in an old project, or the word of who upgrades.
            assert silent(lines, "from jax import ShapedArray") == [] or row.package != "jax"
            assert silent(lines, settings=ModernizeSettings(is_upgrade=True)) == []


# Of each codemod that says since when text means something else: such text.
MEANINGS = {
    "keep_auto_axes": ['mesh = jax.make_mesh((2,), ("x",))'],
    "keep_data_attributes": ["class Alpha(nnx.Module):\n  def __init__(self): self.layers = [nnx.Linear(1, 1)]"],
    "keep_frozen_dicts": ["v = variables.unfreeze()"],
    "keep_nnx_leaves": [
        "l = jax.tree.leaves([nnx.Linear(1, 1)])",
        "n = {nnx.Param(x): 1}",
        "e = nnx.Param(x) == nnx.Param(y)",
    ],
    "keep_nnx_optimizers": ["o = nnx.Optimizer(model, tx)"],
    "keep_spec_tuples": [
        't = isinstance(P("x"), tuple)',
        't = P("x") == ("x",)',
        't = P("x") < P("y")',
        't = P("x") * 2',
    ],
    "keep_variable_annotations": ['v = nnx.Param(x, sharding=("x",))'],
    "keep_variable_values": ["w = nnx.Param(x)\ne = jax.lax.exp(w)"],
    "keep_zeros": ["e = jax.numpy.empty(3)", "e = jax.numpy.empty_like(x)"],
    "rename_keywords": ["c = jax.numpy.clip(x, a_min=0)"],
    "replace_layouts": ["l = jax.experimental.layout.Layout(None, s)", "l = compiled.input_layouts"],
    "replace_mesh_context": ["with jax.sharding.Mesh(d, n): f(x)"],
    "report_axis_names": ["mesh = jax.sharding.Mesh(d, (0, 1))", "mesh = jax.make_mesh((1,), axis_names=(0,))"],
    "report_bound_methods": [
        "class Alpha(nnx.Module):\n  def f(self): pass\ndef g(m: Alpha): return nnx.jit(Alpha().f)",
    ],
    "report_changed_meanings": [
        "c = compiled.cost_analysis()[0]",
        "d = jax.numpy.ones(3).device()",
        "d = unknown.device()",
        "s = jax.pmap(f)(x).addressable_data(0)",
        "s = [each.data for each in jax.pmap(f)(x).addressable_shards]",
        'd = str(device) == "TFRT_CPU_0"',
        "n = nnx.Param(x).sharding_names",
        "a = nn.MultiHeadDotProductAttention(2)(x, x, mask)",
        "f = isinstance(v, flax.core.FrozenDict)",
        "f = isinstance(v, (list, flax.core.frozen_dict.FrozenDict))",
        "f = type(v) is flax.core.FrozenDict",
        "f = type(v) == flax.core.FrozenDict",
        "f = type(v) in (flax.core.FrozenDict, list)",
        "f = v.__class__ is flax.core.FrozenDict",
        "f = issubclass(type(v), flax.core.FrozenDict)",
        "KINDS = (list, flax.core.FrozenDict)",
        "KINDS = {flax.core.FrozenDict}",
        "KINDS = list | flax.core.FrozenDict",
        "class C: KINDS = [flax.core.FrozenDict]",
        "RULES = {flax.core.FrozenDict: f, list: g}",
        "match v:\n  case flax.core.FrozenDict(): f()",
        "match v:\n  case list() | flax.core.FrozenDict(): f()",
        "g.register(flax.core.FrozenDict, f)",
        "@g.register(flax.core.FrozenDict)\ndef _(v): pass",
        "@g.register\ndef _(v: flax.core.FrozenDict): pass",
        "self.assertIsInstance(v, flax.core.FrozenDict)",
    ],
    "report_partition_callbacks": ["p.def_partition(f, infer_sharding_from_operands=f)"],
    "replace_tree_functions": ['jax.tree_util.tree_map(f, {"w": w, "b": None}, u)'],
}
# Those that ask how old a project is, by its other names.
OF_OLD_PROJECTS = ("replace_tree_functions",)


@pytest.mark.parametrize("codemod", sorted(MEANINGS))
def test_text_of_another_meaning_is_not_passed_over(codemod: str) -> None:
    head = "import jax, flax\nfrom flax import nnx, linen as nn\nfrom jax.sharding import PartitionSpec as P\n"
    head += "from jax.experimental.custom_partitioning import custom_partitioning\np = custom_partitioning(abs)\n"
    if codemod in OF_OLD_PROJECTS:
        head += "from jax import ShapedArray\n"
    for text in MEANINGS[codemod]:
        result = modernize_text(f"{head}{text}\n")
        assert max(seen(result), default=0) > head.count("\n"), text


@pytest.mark.parametrize(
    "text",
    [
        "KINDS = (dict, FrozenDict)",
        "KINDS = dict | FrozenDict",
        "RULES = {FrozenDict: f, dict: f}",
        "match v:\n  case FrozenDict() | dict(): f()",
        "match v:\n  case FrozenDict(): f()\n  case {'params': p}: g()",
        "def f(v: FrozenDict | None) -> tuple[FrozenDict, list]: pass",
        "x: list[FrozenDict] = [FrozenDict({})]",
        "Variables = Union[FrozenDict, list]",
        "v = jax.tree.map(FrozenDict, x)",
        "v = (FrozenDict(x), FrozenDict({}))",
        "@g.register\ndef _(v: dict | FrozenDict): pass",
    ],
)
def test_where_dictionaries_are_meant_too_nothing_is_told(text: str) -> None:
    head = "import jax\nfrom typing import Union\nfrom flax.core import FrozenDict\n"
    result = modernize_text(f"{head}{text}\n")
    assert (result.changed, result.refusals, result.left) == (False, (), ())


def test_every_codemod_of_another_meaning_has_such_text() -> None:
    assert set(MEANINGS) == {label for label, codemod in REGISTRY.items() if codemod.changed_in}


def test_programs_of_today_are_left_alone() -> None:
    text = (
        "import jax\nimport jax.numpy as jnp\nimport optax\n\n\ndef f(key, x, rows):\n"
        "    jax.debug.callback(print, x)\n    y = jax.random.normal(key, x.shape) + jnp.ceil(x)\n"
        "    return jnp.where(x > 0, x, 0), rows.split(','), rows.device, optax.huber_loss(x, y, delta=1.0)\n"
    )
    result = modernize_text(text)
    assert (result.changed, result.refusals, result.left) == (False, (), ())


def test_parts_are_read_from_wheels(parts_in: PartsIn) -> None:
    texts = {
        "1.0": (
            "def f(x, y, z=1, *, old=2): pass\n\nclass Alpha:\n    def __init__(self): self.deep_member = 1\n"
            "    def method(self): pass\n\nclass Beta(Alpha): pass\n",
            "flag = bool_state(name='jax_gone', default=True)\nother = bool_flag('jax_kept', bool_env('X', False))\n",
        ),
        "1.1": (
            "def f(y, x, *, z=1): pass\n\nclass Alpha:\n    def __init__(self): pass\n\nclass Beta(Alpha): pass\n",
            "other = bool_flag('jax_kept', True)\n",
        ),
        "1.2": ("def f(y, *, x, z=1): pass\n\nclass Alpha: pass\n\nclass Beta(Alpha): pass\n", "jax_kept = 1\n"),
    }
    from index_parts import part_rows

    parts = parts_in(
        {
            version: {
                "jax/__init__.py": "from jax.a import f as f\n",
                "jax/a.py": text,
                "jax/_src/config.py": flags,
            }
            for version, (text, flags) in texts.items()
        }
    )
    assert list(part_rows(parts)) == [
        {"member": "deep_member", "since": "1.1", "only": True, "of": ["jax.a.Alpha"]},
        {"member": "method", "since": "1.1", "of": ["jax.a.Alpha"]},
        {"member": "deep_member", "since": "1.1", "only": True, "of": ["jax.a.Beta"]},
        {"member": "method", "since": "1.1", "of": ["jax.a.Beta"]},
        {"keyword": "old", "since": "1.1", "of": ["jax.f", "jax.a.f"]},
        {"named": 1, "since": "1.2", "was": ["y", "x"], "of": ["jax.f", "jax.a.f"]},
        {"place": 0, "since": "1.1", "was": ["x", "y", "z"], "is": ["y"], "of": ["jax.f", "jax.a.f"]},
        {"flag": "jax_gone", "since": "1.1", "default": "True"},
        {"flag": "jax_kept", "since": "1.2", "default": "True"},
    ]


# The same module in two releases: its arguments, methods, and names that are bound otherwise.
CALLED = {
    "1.0": {
        "jax/a.py": (
            "def g(x, scale, deep=False): pass\ndef h(x): pass\ndef kept(x, y=1): pass\n\nclass Cell:\n"
            "    def __init__(self, size=1): pass\n    def run(self, a, b): pass\n    @staticmethod\n"
            "    def make(a, b): pass\n\nclass Data(Base): pass\n"
        ),
        "jax/linen/b.py": (
            "from jax.linen.module import Module\nclass Base(Module):\n    width: int = 1\n\n"
            "class Dense(Base):\n    scale: float = 1.0\n"
        ),
        "jax/linen/module.py": "class Module:\n    def __getattr__(self, name): pass\n",
    },
    "1.1": {
        "jax/a.py": (
            "from jax.c import *\ndef kept(x, *, y=1): pass\nif True:\n    kept = wrap(kept)\nh = lambda x, factor: x\n"
        ),
        "jax/c.py": (
            "class Cell:\n    def __init__(self, features, size=1): pass\n    def run(self, a, *, b): pass\n"
            "    @staticmethod\n    def make(b, a): pass\n"
        ),
        "jax/linen/b.py": (
            "from jax.linen.module import Module\nclass Base(Module):\n    features: int\n    width: int = 1\n\n"
            "class Dense(Base):\n    scale: float = 1.0\n"
        ),
        "jax/linen/module.py": "class Module:\n    def __getattr__(self, name): pass\n",
    },
}


def test_what_calls_give_is_read_from_wheels(parts_in: PartsIn) -> None:
    from index_parts import moved_rows, part_rows

    parts = parts_in(
        {version: {"jax/__init__.py": "", "jax/linen/__init__.py": "", **files} for version, files in CALLED.items()}
    )
    assert list(part_rows(parts)) == [
        {"place": 0, "since": "1.1", "was": ["size"], "is": ["features", "size"], "of": ["jax.a.Cell"]},
        {"required": "features", "since": "1.1", "at": 0, "of": ["jax.a.Cell"]},
        {
            "place": 0,
            "since": "1.1",
            "was": ["a", "b"],
            "is": ["b", "a"],
            "of_class": True,
            "of": ["jax.a.Cell.make"],
        },
        {"named": 1, "since": "1.1", "was": ["a", "b"], "of": ["jax.a.Cell.run"]},
        {"required": "factor", "since": "1.1", "at": 1, "of": ["jax.a.h"]},
        {"named": 1, "since": "1.1", "was": ["x", "y"], "of": ["jax.a.kept"]},
        {"place": 0, "since": "1.1", "was": ["width"], "is": ["features", "width"], "of": ["jax.linen.b.Base"]},
        {"required": "features", "since": "1.1", "at": 0, "of": ["jax.linen.b.Base"]},
        {
            "place": 0,
            "since": "1.1",
            "was": ["width", "scale"],
            "is": ["features", "width", "scale"],
            "of": ["jax.linen.b.Dense"],
        },
        {"required": "features", "since": "1.1", "at": 0, "of": ["jax.linen.b.Dense"]},
    ]
    assert list(moved_rows(parts, {"jax.a.g": "jax.a.h", "jax.a.kept": "jax.a.kept"})) == [
        {"moved": "jax.a.g", "to": "jax.a.h", "same": 2, "lost": ["deep", "scale"], "required": {}},
        {"moved": "jax.a.kept", "to": "jax.a.kept", "same": 1, "lost": [], "required": {}},
    ]


# Two releases. Defaults that are made at run time, and equal ones, are no change; fields of modules have any place.
DEFAULTS = {
    "1.0": "def f(a=1, *, b=True, c=(0,), d=None, e=2, g=N): pass\n",
    "1.1": "def f(a=1.0, *, b=False, c=(N, 0), d=3, e=None, g=4): pass\n",
}
FIELDS = {
    "1.0": "import jax.linen.base as b\nclass Wide(b.Module):\n  a: int\n  b: int\n  c: int\n  d: int\n  e: int\n"
    "  f: int\n  g: int\n  h: int\n",
    "1.1": "import jax.linen.base as b\nclass Wide(b.Module):\n  a: int\n  b: int\n  c: int\n  d: int\n  e: int\n"
    "  f: int\n  h: int\n  g: int\n",
}


def test_defaults_and_far_fields_are_read_from_wheels(parts_in: PartsIn) -> None:
    from index_parts import part_rows

    parts = parts_in(
        {
            version: {
                "jax/__init__.py": "",
                "jax/a.py": text,
                "jax/linen/__init__.py": "",
                "jax/linen/base.py": "class Module: pass\n",
                "jax/linen/w.py": FIELDS[version],
            }
            for version, text in DEFAULTS.items()
        }
    )
    order = [*"abcdef", "h", "g"]
    assert list(part_rows(parts)) == [
        {"default": "b", "since": "1.1", "was": "True", "is": "False", "at": None, "of": ["jax.a.f"]},
        {"default": "c", "since": "1.1", "was": "(0,)", "is": "(N, 0)", "at": None, "of": ["jax.a.f"]},
        {"place": 6, "since": "1.1", "was": [*"abcdefgh"], "is": order, "of": ["jax.linen.w.Wide"]},
    ]


def test_what_an_assertion_takes_is_read_from_the_function_that_it_is_made_of(parts_in: PartsIn) -> None:
    from index_parts import part_rows

    made = "check = _value_assertion(assert_fn=_check, jittable_assert_fn=_check_jitted)\n"
    one = {"jax/__init__.py": f"def _check(*trees, rtol=1.0, ignore_nones=False): pass\n{made}"}
    two = {"jax/__init__.py": f"def _check(*trees, rtol=1.0): pass\n{made}"}
    assert list(part_rows(parts_in({"1.0": one, "2.0": two}))) == [
        {"keyword": "ignore_nones", "since": "2.0", "of": ["jax.check"]}
    ]


def test_the_file_is_what_the_script_writes() -> None:
    lines = PARTS_FILE.read_text(encoding="utf-8").splitlines()
    rows = [json.loads(each) for each in lines]
    assert [row["package"] for row in rows if "releases" in row] == ["jax", "flax", "optax", "chex", "orbax.checkpoint"]
    assert lines == [json.dumps(row, ensure_ascii=False) for row in rows]
