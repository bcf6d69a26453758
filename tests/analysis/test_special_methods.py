"""What a loss changes by methods that Python calls where no call is written; each form is run, to see that it does."""

from __future__ import annotations

import textwrap
import types

import pytest
from hinted_sites import site_of

from mmrewrite.analysis.outside_writes import writes_outside
from mmrewrite.analysis.steps.gradients import find_gradient

# What a loss does with an object, by the special method that this runs; and what the method gives.
FORMS = {
    **{
        f"__{name}__": (f"x = thing {sign} 1", "1")
        for name, sign in {
            "add": "+", "and": "&", "floordiv": "//", "lshift": "<<", "matmul": "@", "mod": "%", "mul": "*", "or": "|",
            "pow": "**", "rshift": ">>", "sub": "-", "truediv": "/", "xor": "^", "eq": "==", "ne": "!=", "lt": "<",
            "le": "<=", "gt": ">", "ge": ">=",
        }.items()
    },
    **{
        f"__r{name}__": (f"x = 1 {sign} thing", "1")
        for name, sign in {
            "add": "+", "and": "&", "floordiv": "//", "lshift": "<<", "matmul": "@", "mod": "%", "mul": "*", "or": "|",
            "pow": "**", "rshift": ">>", "sub": "-", "truediv": "/", "xor": "^",
        }.items()
    },
    **{
        f"__i{name}__": (f"thing_ = thing\nthing_ {sign}= 1", "1")
        for name, sign in {
            "add": "+", "and": "&", "floordiv": "//", "lshift": "<<", "matmul": "@", "mod": "%", "mul": "*", "or": "|",
            "pow": "**", "rshift": ">>", "sub": "-", "truediv": "/", "xor": "^",
        }.items()
    },
    "__neg__": ("x = -thing", "1"),
    "__pos__": ("x = +thing", "1"),
    "__invert__": ("x = ~thing", "1"),
    "__abs__": ("x = abs(thing)", "1"),
    "__round__": ("x = round(thing)", "1"),
    "__divmod__": ("x = divmod(thing, 2)", "(1, 1)"),
    "__rdivmod__": ("x = divmod(2, thing)", "(1, 1)"),
    "__int__": ("x = int(thing)", "1"),
    "__float__": ("x = float(thing)", "1.0"),
    "__complex__": ("x = complex(thing)", "1j"),
    "__index__": ("x = [1, 2][thing]", "1"),
    "__hash__": ("x = {thing: 1}", "1"),
    "__hash__, by its function": ("x = hash(thing)", "1"),
    "__hash__, in a set": ("x = {thing}", "1"),
    "__bool__, of `if`": ("if thing:\n    pass", "True"),
    "__bool__, of `while`": ("while not thing:\n    pass", "True"),
    "__bool__, of `and`": ("x = thing and 1", "True"),
    "__bool__, of a choice": ("x = 1 if thing else 2", "True"),
    "__bool__, of `assert`": ("assert thing", "True"),
    "__bool__, of `not`": ("x = not thing", "True"),
    "__bool__, of a comprehension": ("x = [n for n in range(2) if thing]", "True"),
    "__bool__, of a guard": ("match 1:\n    case 1 if thing:\n        pass", "True"),
    "__bool__, of `bool`": ("x = bool(thing)", "True"),
    "__len__, of `if`": ("if thing:\n    pass", "1"),
    "__len__": ("x = len(thing)", "1"),
    "__iter__": ("for n in thing:\n    pass", "iter([1])"),
    "__iter__, of a comprehension": ("x = [n for n in thing]", "iter([1])"),
    "__iter__, of a star": ("x = [*thing]", "iter([1])"),
    "__iter__, unpacked": ("x, y = thing", "iter([1, 2])"),
    "__iter__, of `list`": ("x = list(thing)", "iter([1])"),
    "__iter__, of `sum`": ("x = sum(thing)", "iter([1])"),
    "__iter__, of `zip`": ("x = list(zip(thing, [1]))", "iter([1])"),
    "__iter__, of `in`": ("x = 1 in thing", "iter([1])"),
    "__iter__, of a star in a call": ("print(*thing)", "iter([1])"),
    "__iter__, of `extend`": ("x = []\nx.extend(thing)", "iter([1])"),
    "__next__": ("x = next(thing)", "1"),
    "__reversed__": ("x = list(reversed(thing))", "iter([1])"),
    "__contains__": ("x = 1 in thing", "True"),
    "__getitem__": ("x = thing[0]", "1"),
    "__getitem__, added to": ("thing[0] += 1", "1"),
    "__setitem__": ("thing[0] = 1", "None"),
    "__delitem__": ("del thing[0]", "None"),
    "__getattr__": ("x = thing.other", "1"),
    "__getattr__, by its function": ('x = getattr(thing, "other")', "1"),
    "__getattr__, asked for": ('x = hasattr(thing, "other")', "1"),
    "__setattr__": ("thing.other = 1", "None"),
    "__delattr__": ("del thing.other", "None"),
    "__call__": ("x = thing(1)", "1"),
    "__call__, handed on": ("x = list(map(thing, [1]))", "1"),
    "__enter__": ("with thing:\n    pass", "1"),
    "__exit__": ("with thing:\n    pass", "None"),
    "__str__": ("x = str(thing)", "'1'"),
    "__str__, of `print`": ("print(thing)", "'1'"),
    "__repr__": ("x = repr(thing)", "'1'"),
    "__repr__, in a text": ('x = f"{thing!r}"', "'1'"),
    "__format__": ('x = f"{thing}"', "'1'"),
    "__format__, by its function": ("x = format(thing)", "'1'"),
    "__bytes__": ("x = bytes(thing)", "b'1'"),
    "__dir__": ("x = dir(thing)", "['a']"),
    "__copy__": ("import copy\nx = copy.copy(thing)", "1"),
    "__deepcopy__": ("import copy\nx = copy.deepcopy(thing)", "1"),
    "__fspath__": ("import os\nx = os.fspath(thing)", "'1'"),
    "__array__": ("import numpy as np\nx = np.asarray(thing)", "(1, 2)"),
    "__trunc__": ("import math\nx = math.trunc(thing)", "1"),
    "__length_hint__": ("import operator\nx = operator.length_hint(thing)", "1"),
    "keys": ("x = {**thing}", "[]"),
    "value, a property": ("x = thing.value", "1"),
    "value, a property that is set": ("thing.value = 1", "1"),
}  # fmt: skip
# Where the object and what it changes are: lines above the step, in front of the loss, and what the method does.
PLACES = {
    "object of the module": ("thing = Thing()", "", "self.__dict__.setdefault('ran', []).append(1)"),
    "object of the step": ("", "thing = Thing()", "self.__dict__.setdefault('ran', []).append(1)"),
    "object of the loss, state of the module": ("", "", "RAN.append(1)"),
    "object that a function makes": (
        "def build():\n    made = Thing()\n    return made",
        "thing = build()",
        "self.__dict__.setdefault('ran', []).append(1)",
    ),
    "one of several objects": (
        "",
        "things = [Thing()]\nthing = things[0]",
        "self.__dict__.setdefault('ran', []).append(1)",
    ),
    "one of two objects": (
        "",
        "thing = Thing()\nif params is None:\n    thing = Thing()",
        "self.__dict__.setdefault('ran', []).append(1)",
    ),
    "object by many names": (
        "",
        "a = Thing()\nb = a\nc = b\nd = c\ne = d\nf = e\ng = f\nh = g\nthing = h",
        "self.__dict__.setdefault('ran', []).append(1)",
    ),
}


def program(form: str, place: str, *, hinted: bool) -> str:
    body, gives = FORMS[form]
    above, before, change = PLACES[place]
    method = form.partition(",")[0]
    decorator = "@property" if "property" in form else ""
    other = {
        "__enter__": "def __exit__(self, *args):\n    pass",
        "__exit__": "def __enter__(self):\n    pass",
        "keys": "def __getitem__(self, key):\n    return key",
    }.get(method, "def __setitem__(self, key, value):\n    pass" if "added to" in form else "")
    if "that is set" in form:
        definition = f"@property\ndef value(self):\n    return 1\n@value.setter\ndef value(self, new):\n    {change}"
    else:
        definition = f"{decorator}\ndef {method}(self, *args):\n    {change}\n    return {gives}"
    own = "thing = Thing()" if place.startswith("object of the loss") else ""
    loss = f"{own}\n{body}\nreturn 0.0"
    return "\n".join(
        (
            "import jax" if hinted else "",
            "RAN = []",
            "class Thing:",
            textwrap.indent(f"{definition}\n{other}", "    "),
            above,
            "def step(params, batch):",
            textwrap.indent(before or "pass", "    "),
            "    def loss(params, batch):",
            textwrap.indent(loss, "        "),
            "    return jax.grad(loss)(params, batch)  # mm: microbatch(size=2)"
            if hinted
            else "    loss(params, batch)\n    return locals().get('thing', globals().get('thing'))",
        )
    )


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("form", FORMS)
def test_methods_that_no_call_names(form: str, place: str) -> None:
    # NumPy is not there where these tests run without JAX.
    numpy = types.SimpleNamespace(asarray=lambda thing: thing.__array__())
    space: dict[str, object] = {"np": numpy}
    exec(program(form, place, hinted=False).replace("import numpy as np", "pass"), space)
    step = space["step"]
    assert callable(step)
    thing = step(1, 2)
    ran = thing.__dict__.get("ran") if thing is not None else space["RAN"]
    assert ran, "the form does not run the method"
    site = site_of(program(form, place, hinted=True))
    assert writes_outside(site, find_gradient(site), ()) is not None
