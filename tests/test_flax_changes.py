"""What Flax changed in nnx in 2025 and 2026: a program for each entry is rewritten, told, or needs nothing.

The entries are those of its release notes and of its guide to 0.11, of releases up to 0.12.12:
https://github.com/google/flax/releases and https://flax.readthedocs.io/en/latest/migrating/nnx_010_to_nnx_011.html
"""

from __future__ import annotations

import sys
import warnings
from types import ModuleType

import pytest
from fixture_files import modernize_text

from mmrewrite.results import Rewrite

HEAD = "import jax\nimport jax.numpy as jnp\nimport optax\nfrom flax import nnx\nrngs = nnx.Rngs(0)\n"
FIELD = "import dataclasses\n@dataclasses.dataclass\nclass M(nnx.Module):\n    {}\n"
MODULE = "class M(nnx.Module):\n    def __init__(self):\n        {}\n    def f(self, x):\n        {}\n"
CACHED = "import functools\n{}\ndef f(v):\n    return 1\ng = {}\np = nnx.Param(1.0)\n"
LAYER = "m = nnx.Linear(2, 2, rngs=rngs)\n"

# Programs that raise today, or mean something else, and become others that do what they did.
REWRITTEN = {
    "0.10.7: jax.lax takes no variables": "w = nnx.Param(jnp.ones((2, 2)))\njax.lax.dot(jnp.ones((2, 2)), w)\n",
    "0.11.1: Object of its module": "from flax.nnx.object import Object\nclass O(Object):\n    pass\nO()\n",
    "0.11: Optimizer needs wrt": LAYER + "o = nnx.Optimizer(m, optax.sgd(1.0))\n",
    "0.11: update takes the model": LAYER
    + "o = nnx.Optimizer(m, optax.sgd(1.0), wrt=nnx.Param)\no.update(nnx.state(m))\n",
    "0.11: Optimizer has no model": LAYER + "o = nnx.Optimizer(m, optax.sgd(1.0), wrt=nnx.Param)\no.model\n",
    "0.12: sharding= lays out": "p = nnx.Param(jnp.ones((4, 4)), sharding=('a', None))\n",
    "0.12: += on a variable": "p = nnx.Param(jnp.ones(2))\np += 1\n",
    "0.12: += on an attribute": MODULE.format("self.n = nnx.Variable(jnp.array(0))", "self.n += x") + "M().f(1)\n",
    "0.12: list of modules": MODULE.format("self.ls = [nnx.Linear(2, 2, rngs=rngs)]", "pass") + "M()\n",
    "0.12: state of optax": MODULE.format("self.t = optax.adam(1.0); self.s = self.t.init(jnp.ones(2))", "pass")
    + "M()\n",
    "0.12: state of a module": MODULE.format("self.s = nnx.state(nnx.Linear(2, 2, rngs=rngs))", "pass") + "M()\n",
    "0.12: state that is split off": MODULE.format(
        "g, s = nnx.split(nnx.Linear(2, 2, rngs=rngs)); self.g = g; self.s = s", "pass"
    )
    + "M()\n",
    "0.12: list that grows": MODULE.format("self.ls = []; self.ls.append(nnx.Param(1.0))", "pass") + "M()\n",
    "0.12: tuple of modules": MODULE.format("self.ls = nnx.Param(1.0), nnx.Param(2.0)", "pass") + "M()\n",
    "0.12: tuple without parentheses": MODULE.format("self.ls = (nnx.Param(1.0)), (nnx.Param(2.0))", "pass") + "M()\n",
    "0.12: dictionary of modules": MODULE.format("self.ls = {'a': nnx.Linear(2, 2, rngs=rngs)}", "pass") + "M()\n",
    "0.12: list in a field": FIELD.format("ls: list") + "M([nnx.Param(1.0)])\n",
    "0.12: list in a field below": FIELD.format("ls: list")
    + "@dataclasses.dataclass\nclass N(M):\n    n: int\nN([nnx.Param(1.0)], 2)\n",
    "0.12: list by a factory": FIELD.format("ls: list = dataclasses.field(default_factory=lambda: [nnx.Param(1.0)])")
    + "M()\n",
    "0.12: list by annotation": FIELD.format("ls: 'list[nnx.Param]'")
    + "import sys\nsys.modules[__name__].M([nnx.Param(1.0)])\n",
    "0.12: list set from outside": MODULE.format("pass", "pass") + "m = M()\nm.ls = [nnx.Param(1.0)]\n",
    "0.12: None before data": MODULE.format("self.a = None", "self.a = nnx.Param(x)") + "M().f(1.0)\n",
}
# Those that are refused, or left alone with a sentence.
TOLD = {
    "0.12: parts of a split": MODULE.format("self.g, self.s = nnx.split(nnx.Linear(2, 2, rngs=rngs))", "pass")
    + "M()\n",
    "0.12: a named tuple": "import collections\nS = collections.namedtuple('S', 'a')\n"
    + MODULE.format("self.s = S(nnx.Param(1.0))", "pass")
    + "M()\n",
    "0.10.4: register_variable_name_type_pair": "nnx.register_variable_name_type_pair('a', nnx.Param)\n",
    "0.10.7: RngStream takes the key": "nnx.RngStream('params', jax.random.key(0), jnp.uint32(0))\n",
    "0.11: variables of states": LAYER + "[v.to_variable() for _, v in nnx.state(m).flat_state()]\n",
    "0.11: states of variables": "nnx.Param.state(1.0)\n",
    "0.11: state of a variable": "nnx.Param(1.0).mutable\n",
    "0.11: definitions of graphs": LAYER + "g, _ = nnx.split(m)\ng.index_mapping\n",
    "0.11.1: a module of before": "from flax.nnx.object import ObjectMeta\n",
    "0.12.1: what a module imported": "from flax.nnx.variablelib import MutableArray\nMutableArray\n",
    "0.11: VariableState is Variable": LAYER + "isinstance(nnx.state(m)['kernel'], nnx.VariableState)\n",
    "0.11: modules are trees": LAYER + "jax.tree.map(type, [m])\n",
    "0.11: variables are trees": "jax.tree.leaves({'a': nnx.Param(1.0)})\n",
    "0.12: variables have no hash": "p = nnx.Param(1.0)\n{p: 1}\n",
    "0.12: variables in a set": "p = nnx.Param(1.0)\ns = set()\ns.add(p)\n",
    "0.12: a set of variables": "set([nnx.Param(1.0)])\n",
    "0.12: variables as keys": "p = nnx.Param(1.0)\nd = {}\nd[p] = p in d\n",
    "0.12: keys of pairs": "p = nnx.Param(1.0)\ndict(zip([p], [1]))\n",
    "0.12: keys of a list": "ps = [nnx.Param(1.0)]\ndict.fromkeys(ps)\n",
    "0.12: more for a set": "p = nnx.Param(1.0)\ns = set()\ns.update(q for q in [p])\n",
    "0.12: cached by a decorator": CACHED.format("@functools.lru_cache(maxsize=8)", "f") + "f(v=p)\n",
    "0.12: cached by a call": CACHED.format("", "functools.cache(f)") + "g(p)\n",
    "0.12: cached lambdas": "import functools\nf = functools.cache(lambda v: v)\nf(nnx.Param(1.0))\n",
    "0.12: sharding= unseen": "import lib\nlib.f({'sharding': 1})\ndef run(f, words):\n    f(**words)\nlib.f(run)\n",
    "0.12: == of variables": "p = nnx.Param(1.0)\np == nnx.Param(1.0)\n",
    "0.12: in a list of variables": "p = nnx.Param(1.0)\np in [p]\n",
    "0.12: index of a variable": "ps = [nnx.Param(1.0)]\nps.index(ps[0])\n",
    "0.11.2: with_sharding_constraint": "nnx.with_sharding_constraint(x, None)\n",
    "0.12: attributes of variables": "p = nnx.Param(1.0)\np.tag = 1\n",
    "0.12: setattr on a variable": "p = nnx.Param(1.0)\nsetattr(p, 'tag', 1)\n",
    "0.12: setattr on what has a value": "def f(ps):\n    for p in ps:\n        p.value, setattr(p, 'tag', 1)\n",
    "0.12: with_partitioning lays out": "init = nnx.with_partitioning(nnx.initializers.zeros, (None, 'a'))\n",
    "0.12: a constant before data": MODULE.format("self.a = 0", "self.a = nnx.Param(x)") + "M().f(1.0)\n",
    "0.12: an object that is a tree": "import typing\nclass S(typing.NamedTuple):\n    a: object\n"
    + MODULE.format("self.s = S(nnx.Param(1.0))", "pass")
    + "M()\n",
    "0.12: list of arrays": MODULE.format("self.ls = [jnp.ones(2)]", "pass") + "M()\n",
    "0.12: list of NumPy's arrays": "import numpy as np\n" + MODULE.format("self.ls = [np.ones(2)]", "pass") + "M()\n",
    "0.12: list of results": MODULE.format("self.ls = [jax.nn.relu(jnp.ones(2))]", "pass") + "M()\n",
    "0.12.1: initializers are no attributes": LAYER + "m.kernel_init\n",
    "0.12.1: methods with their object": MODULE.format("pass", "return x") + "nnx.jit(M().f)(1)\n",
    "0.12.2: abstracted_axes": "nnx.jit(lambda x: x, abstracted_axes=None)\n",
    "0.12.3: as_mutable_vars": LAYER + "nnx.as_mutable_vars(m)\n",
    "0.12.4: set_mode": "nnx.Dropout(0.5, rngs=rngs).set_mode()\n",
}
# Those that run as they are.
NOTHING = {
    "0.10.4: methods of State warn": LAYER + "nnx.state(m).flat_state()\n",
    "0.11: Object is Pytree": "class O(nnx.Object):\n    pass\nO()\n",
    "0.11: layers fork their Rngs": "nnx.Dropout(0.5, rngs=rngs)(jnp.ones(2))\n",
    "0.12: value of a variable": "p = nnx.Param(jnp.ones(2))\np.value += 1\n",
    "0.12: arithmetic of variables": "p = nnx.Param(jnp.ones(2))\np * 2 + p\n",
    "0.12: lists of nnx": MODULE.format("self.ls = nnx.List([nnx.Linear(2, 2, rngs=rngs)])", "pass") + "M()\n",
    "0.12: no data in a field": FIELD.format("ls: list") + "M([1, 2])\n",
    "0.12: no trees": MODULE.format("self.t = optax.adam(1.0)", "pass") + "M()\n",
    "0.12: data in branches": MODULE.format("self.a = nnx.Param(1.0) if rngs else None", "pass") + "M()\n",
    "0.12: data before None": MODULE.format("self.a = nnx.Param(1.0)", "self.a = None") + "M().f(1)\n",
    "0.12: eval_shape": "nnx.eval_shape(lambda: nnx.Linear(2, 2, rngs=nnx.Rngs(0)))\n",
    "0.12: variables in what is no set": "class Q:\n    add = staticmethod(id)\nq = Q()\nq.add(nnx.Param(1.0))\n",
    "0.11: trees of jax.lax": "jax.lax.stop_gradient(nnx.Param(1.0))\njax.lax.mul(nnx.Param(2.0).value, 3.0)\n",
    "0.11: states of a module": LAYER + "g, s = nnx.split(m)\nnnx.merge(g, s), nnx.state(m)\n",
    "0.12: other methods": "class Q:\n    index = staticmethod(id)\nQ().index(nnx.Param(1.0))\n",
    "0.12: variables as values": "p = nnx.Param(1.0)\nset({'a': p})\ndict([('a', p)])\n{}.update(a=p)\n",
    "0.12: cached for a value": CACHED.format("@functools.cache", "id") + "f(p.value), g(p)\n",
    "0.12: list of numbers": "import numpy as np\n" + MODULE.format("self.ls = [np.float32(1)]", "pass") + "M()\n",
    "0.12: truth of a variable": "if nnx.Param(jnp.ones(2)): pass\n",
    "0.12: trees of states": LAYER + "jax.tree.map(jnp.zeros_like, nnx.state(m))\n",
    "0.12: metadata": "p = nnx.Param(1.0, tag=1)\np.tag, p.get_metadata()['tag'], p.set_metadata(tag=2)\n",
    "0.12.1: methods of the class": MODULE.format("pass", "return x") + "nnx.jit(M.f)(M(), 1)\n",
    "0.12.1: value warns": "nnx.Param(1.0).value\n",
    "0.12.3: hooks warn": "nnx.Param(1.0, on_get_value=lambda variable, value: value)\n",
}


def modernized(text: str) -> Rewrite:
    return modernize_text(HEAD + text)


def runs(text: str) -> bool:
    # Dataclasses look for the module of a class.
    sys.modules["program"] = ModuleType("program")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            exec(text, vars(sys.modules["program"]))
        except Exception:
            return False
        finally:
            del sys.modules["program"]
    return True


@pytest.mark.parametrize("entry", REWRITTEN)
def test_is_rewritten(entry: str) -> None:
    result = modernized(REWRITTEN[entry])
    assert result.changed
    assert result.refusals == ()


@pytest.mark.parametrize("entry", TOLD)
def test_is_told(entry: str) -> None:
    result = modernized(TOLD[entry])
    assert not result.changed
    assert result.refusals or result.left


@pytest.mark.parametrize("entry", NOTHING)
def test_needs_nothing(entry: str) -> None:
    result = modernized(NOTHING[entry])
    assert (result.changed, result.refusals, result.left) == (False, (), ())


def test_a_call_that_needs_more_today_shows_that_states_were_copies() -> None:
    old = modernized(LAYER + "nnx.Optimizer(m, optax.sgd(1.0))\nnnx.merge(*nnx.split(m)), nnx.state(m)\n")
    assert sorted(each.name for each in old.left) == ["flax.nnx.merge", "flax.nnx.split", "flax.nnx.state"]


def test_what_is_rewritten_runs_on_the_flax_that_is_here() -> None:
    pytest.importorskip("flax")
    assert [entry for entry, text in NOTHING.items() if not runs(HEAD + text)] == []
    # An update by anything but gradients, and an annotation, may or may not raise.
    failing = {entry for entry, text in REWRITTEN.items() if not runs(HEAD + text)}
    assert {entry for entry in REWRITTEN if not entry.endswith("lays out")} <= failing
    assert [entry for entry in REWRITTEN if not runs(modernized(REWRITTEN[entry]).result.decode())] == []
