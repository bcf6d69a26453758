"""Random programs of scopes and bindings, run before and after `modernize`: none is rewritten wrongly or in silence.

The programs run on a JAX of three modules. On one that has the old name and the new one, a rewritten program must give
what it gave before, wherever it gave something; on one without the old name, each use that is lost must have been
reported at its line. On Python 3.12 they have type parameters as well.
"""

from __future__ import annotations

import contextlib
import random
import sys
import types
from collections.abc import Iterator

import pytest
from fixture_files import modernize_text, told_lines

NAMES = ("jax", "m", "t")
_BINDINGS = (
    "import jax",
    "import jax as {name}",
    "import other as {name}",
    "from jax import tree_map as {name}",
    "from other import tree_map as {name}",
    "{name} = {value}",
    "{name} = {value}",
    "{name}: object = {value}",
    "{name}, _ = {value}, 1",
    "for {name} in ({value},): pass",
    "with nullcontext({value}) as {name}: pass",
    "del {name}",
    "def {name}(): pass",
    "class {name}: tree_map = 'own'",
    "_ = ({name} := {value})",
    "_ = [{name} for {name} in ({value},)]",
)
_USES = (
    *["{name}.tree_map"] * 3,
    "{name}",
    "(lambda: {name}.tree_map)()",
    "(lambda {name}: {name}.tree_map)({other})",
    "(lambda {name}={name}: {name}.tree_map)()",
    "[{name}.tree_map for _ in (1,)][0]",
    "[{name}.tree_map for {name} in ({other},)][0]",
    "({name} := {other}).tree_map",
)
_GENERICS = ("", "[jax]", "[m]", "[*t]", "[T: {type}]", "[jax, T: {type}]") if sys.version_info >= (3, 12) else ("",)
_VALUES = ("{name}", "{name}", "{name}.tree_map", "None", "({name} if flag else {other})", "({name} or {other})")


class Program:
    """The lines of a random program; each use notes what it got under its number."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._uses = 0
        self._methods: list[str] = []
        self.lines = ["import jax", f"flag = {self._random.choice((True, False))}"]
        self._block("", 0, "module")

    def _fill(self, choices: tuple[str, ...]) -> str:
        pick = self._random.choice
        value = pick(_VALUES).format(name=pick(NAMES), other=pick(NAMES))
        return pick(choices).format(name=pick(NAMES), other=pick(NAMES), value=value)

    def _try(self, indent: str, line: str) -> None:
        # A `try` around imports alone would choose by the version of JAX.
        body = [f"{indent}    {line}", f"{indent}    note(0)"]
        self.lines += [f"{indent}try:", *body, f"{indent}except Exception:", f"{indent}    note(0)"]

    def _note(self) -> str:
        self._uses += 1
        return f"note({self._uses}, {self._fill(_USES)})"

    def _use(self, indent: str) -> None:
        self._try(indent, self._note())

    def _type(self) -> str:
        # An annotation cannot bind a name.
        note = self._note()
        return "None" if ":=" in note else note

    def _alias(self, indent: str) -> None:
        """A `type` statement, whose value is evaluated late."""
        name = f"A_{len(self.lines)}"
        self.lines.append(f"{indent}type {name}{self._generic()} = {self._type()}")
        self._try(indent, f"{name}.__value__")

    def _generic(self) -> str:
        choice = self._random.choice(_GENERICS)
        return choice.format(type=self._type()) if "{" in choice else choice

    def _block(self, indent: str, depth: int, kind: str) -> None:
        inner, pick = f"{indent}    ", self._random.choice
        if kind == "function" and self._random.random() < 0.25:
            self.lines.append(f"{indent}global {pick(NAMES)}")
        for _ in range(self._random.randint(2, 4)):
            what = self._random.random()
            if what < 0.4:
                self._try(indent, self._fill(_BINDINGS))
            elif what < 0.7 or depth > 2:
                self._use(indent)
            elif what < 0.73 and len(_GENERICS) > 1:
                self._alias(indent)
            elif what < 0.8:
                self.lines.append(f"{indent}if {pick(('flag', 'not flag'))}:")
                self._block(inner, depth + 1, kind if kind == "class" else "if")
            elif what < 0.92:
                name, parameter = f"f_{len(self.lines)}", pick(("", "", "jax=jax", "m=t", "t"))
                generic = self._generic()
                if generic:
                    typed = f"{parameter}{', ' if parameter else ''}*a_: {self._type()}"
                    self.lines.append(f"{indent}def {name}{generic}({typed}) -> {self._type()}:")
                else:
                    self.lines.append(f"{indent}def {name}({parameter}):")
                self._block(inner, depth + 1, "function")
                if ": " in generic:
                    self._try(indent, f"{name}.__type_params__[-1].__bound__")
                given = pick(NAMES) if parameter == "t" else ""
                self._try(indent, f"{name}({given})")
                if kind == "class" and given:
                    self._methods.append(name)
            else:
                generic = self._generic()
                bases = f"({self._type()} or B_)" if generic else ""
                name, self._methods = f"C_{len(self.lines)}", []
                self.lines.append(f"{indent}class {name}{generic}{bases}:")
                self._block(inner, depth + 1, "class")
                for method in self._methods:
                    self._try(indent, f"{name}.{method}({pick(NAMES)})")
                self._methods = []
        self._use(indent)


@contextlib.contextmanager
def _modules(*, has_old_name: bool) -> Iterator[None]:
    found = {name: types.ModuleType(name) for name in ("jax", "jax.tree", "jax.tree_util", "other")}
    jax, tree, tree_util, other = found.values()
    jax.tree, jax.tree_util, tree.map, tree_util.tree_map = tree, tree_util, "map", "map"  # type: ignore[attr-defined]
    other.tree_map = "other"  # type: ignore[attr-defined]
    if has_old_name:
        jax.tree_map = "map"  # type: ignore[attr-defined]
    before = {name: sys.modules.get(name) for name in found}
    sys.modules.update(found)
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def run(text: str, *, has_old_name: bool) -> dict[int, str]:
    """The texts that the uses of a program got; others raised, got something else, or did not run."""
    found: dict[int, str] = {}

    def note(number: int, value: object = None) -> None:
        if isinstance(value, str):
            found[number] = value

    code = compile(text, "program.py", "exec")
    # A default or a type may be a name that nothing has bound yet, or that has no such member, which ends the program.
    with _modules(has_old_name=has_old_name), contextlib.suppress(NameError, AttributeError):
        exec(code, {"note": note, "B_": type("B_", (), {}), "nullcontext": contextlib.nullcontext, "__name__": "p"})
    return found


IMPORTS = "import jax\nimport other\n\n\n"
# Texts below these imports, what becomes of them if they change, and the lines that are reported.
CASES = {
    "a global name below one of the function around": (
        "def outer(jax):\n    def inner():\n        global jax\n        return jax.tree_map\n    return inner\n",
        "def outer(jax):\n    def inner():\n        global jax\n        return jax.tree.map\n    return inner\n",
        set(),
    ),
    "a name of a function that becomes a global one": (
        "def f():\n    import other as jax\n    global m\n    m = jax\n\n\ndef g():\n    return m.tree_map\n",
        None,
        set(),
    ),
    "a name that is bound by nonlocal above": (
        "def f():\n    def g():\n        nonlocal m\n        m = jax\n    m = None\n    g()\n    return m.tree_map\n",
        None,
        {11},
    ),
    "a class that reads a name above its own": (
        "class C:\n    y = other.tree_map\n    import jax as other\n    z = other.tree_map\n",
        None,
        {6, 8},
    ),
    "a class that reads a name below its own alone": (
        "class C:\n    import jax as other\n    z = [other.tree_map, other.tree_map]\n",
        "class C:\n    import jax as other\n    z = [jax.tree.map, jax.tree.map]\n",
        set(),
    ),
    "a class that may bind a name": (
        "class C:\n    if len('a'):\n        import other as jax\n    y = jax.tree_map\n",
        None,
        {8},
    ),
    "a class that takes a name of the module": (
        "def f(jax):\n    class C:\n        jax = jax\n        y = jax.tree_map\n    return C\n",
        None,
        {8},
    ),
    "a class that deletes its name": (
        "class C:\n    import other as jax\n    del jax\n    y = jax.tree_map\n",
        None,
        {8},
    ),
    "names for a module that something may have kept from being bound": (
        "try:\n    jax.none\n    j = jax\nexcept AttributeError:\n    pass\n\n\n"
        "def f(jax):\n    import jax as of_jax\n    return other.f(jax, of_jax.tree_map)\n",
        "try:\n    jax.none\n    j = jax\nexcept AttributeError:\n    pass\n\n\n"
        "def f(jax):\n    import jax as of_jax\n    return other.f(jax, of_jax.tree.map)\n",
        set(),
    ),
    "the first parameter of a method that the body of its class calls": (
        "del jax\nimport jax\n\n\nclass C:\n    def f(t):\n        return t.tree_map\n    y = f(jax)\n",
        None,
        {11},
    ),
    "the first parameter of a method that is called by its class": (
        "del jax\nimport jax\n\n\nclass C:\n    def f(t):\n        return t.tree_map\n\n\ny = C.f(jax)\n",
        None,
        {11},
    ),
    "the first parameter of a method that has a default": (
        "class C:\n    def f(jax=jax):\n        return jax.tree_map\n    y = f()\n    jax = 1\n",
        None,
        {7},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_name_has_the_meaning_of_its_scope(name: str) -> None:
    text, after, told = CASES[name]
    result = modernize_text(f"{IMPORTS}{text}")
    assert result.result.decode() == IMPORTS + (text if after is None else after)
    assert {item.line for item in (*result.refusals, *result.left)} == told


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, 400, 100))
def test_no_program_is_rewritten_wrongly_or_in_silence(start: int) -> None:
    tried = changed = lost = 0
    for seed in range(start, start + 100):
        lines = Program(seed).lines
        text = "\n".join(lines) + "\n"
        try:
            before = run(text, has_old_name=True)
        except SyntaxError:
            # A name that a function declares global after it is a parameter.
            continue
        result = modernize_text(text)
        assert result.failure is None, seed
        after = run(result.result.decode(), has_old_name=True)
        assert before.items() <= after.items(), f"{seed}: {text}"
        today = run(result.result.decode(), has_old_name=False)
        gone = [number for number, value in after.items() if today.get(number) != value]
        tried, changed, lost = tried + 1, changed + result.changed, lost + bool(gone)
        told = told_lines(result)
        for number in gone:
            places = {place for place, line in enumerate(lines, 1) if f"note({number}, " in line}
            assert places & told, f"{seed}, line {places}: {text}"
    # The programs are worth something: most have an old name that is rewritten, and many one that is told.
    assert tried > 60
    assert changed > 25
    assert lost > 15
