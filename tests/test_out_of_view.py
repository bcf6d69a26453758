"""Questions that edits depend on, where code that is not in view may decide: the answer is never "no".

The programs are in `code_out_of_view.txt`. In each, a method enters a mesh and leads out of view in another form; in
place of the `with` stands what a question is about.
"""

from __future__ import annotations

import re

import pytest
from fixture_files import modernize_text, source_files
from test_values import programs

from mmmodernize.registry import ModernizeRegistry
from mmmodernize.rewrite import modernize_project

REGISTRY = ModernizeRegistry()
OUT_OF_VIEW = programs("code_out_of_view.txt")
# In these all is in view.
IN_VIEW = {
    "nothing else": "def train(x):\n    with mesh:\n        step(x)\n",
    "function": "def run(x):\n    return x\ndef train(x):\n    with mesh:\n        step(x)\n        run(x)\n",
    "methods": "class V:\n    def __add__(self, o):\n        return o\n    def __len__(self):\n        return 1\n"
    "def train(x):\n    with mesh:\n        step(x)\n        (V() + 1, len(V()), f'{V()}')\n",
    "method that is overridden": "class T:\n    def run(self, x): ...\n    def train(self, x):\n        with mesh:\n"
    "            step(x)\n            self.run(x)\nclass U(T):\n    def run(self, x):\n        return x\n",
}
HEAD = """\
import asyncio, contextlib, copy, functools, importlib, itertools, operator, threading
import jax
from jax.experimental.pjit import pjit
from jax.experimental.shard_map import shard_map
from jax.sharding import Mesh, PartitionSpec as P
"""
STEP = "step = pjit(lambda x: x, in_axis_resources=P('d'), out_axis_resources=P('d'))\n"
MESH = "mesh = Mesh(jax.devices(), ('d',))\n"
MAPPED = "@functools.partial(shard_map, mesh=mesh, in_specs=P(), out_specs=P())"
# These suspend the function, or go through what hands no gradients on.
NOT_MAPPED = frozenset(("generator", "contextmanager", "star", "unpack", "in"))
# Gradients that a mapped function takes in view.
GRADIENTS = {
    "method of its class": "class T:\n    def run(self, x):\n        return x\n    def train(self, x):\n"
    "        with mesh:\n            step(x)\n            self.run(x)\nclass U(T):\n    def run(self, x):\n"
    "        return jax.grad(loss)(x)\n",
    "object": "class M:\n    def update(self, x):\n        return jax.grad(loss)(x)\nm = M()\ndef train(x):\n"
    "    with mesh:\n        step(x)\n        m.update(x)\n",
    "operator": "class M:\n    def __matmul__(self, x):\n        return jax.grad(loss)(x)\nm = M()\ndef train(x):\n"
    "    with mesh:\n        step(x)\n        m @ x\n",
    "decorator": "@jax.grad\ndef g(x):\n    return x\ndef train(x):\n    with mesh:\n        step(x)\n        g(x)\n",
    "lookup": "def train(x):\n    with mesh:\n        step(x)\n        getattr(jax, 'grad')(loss)(x)\n",
    **{
        call: f"{start}\ndef loss(x):\n    return x\ndef train(x):\n    with mesh:\n        step(x)\n        {call}\n"
        for start, call in (
            ("", "jax.api.grad(loss)(x)"),
            ("from jax.experimental import sparse", "sparse.grad(loss)(x)"),
            ("from jax.scipy.optimize import minimize", "minimize(loss, x, method='BFGS')"),
            ("", "jax.linear_transpose(loss, x)(x)"),
            ("import optax", "optax.lbfgs().update(x, x, x, value=1, grad=x, value_fn=loss)"),
            ("import rlax", "rlax.unheard_of(x, loss)"),
            ("import equinox", "equinox.filter_hessian(loss)(x)"),
        )
    },
}
IMPORTS = "import bisect, concurrent.futures, re, signal\nimport equinox, numpy, optax, scipy.optimize\n"
# Functions and methods of libraries that call a function which is not in view.
CALL_BACK = """\
jax.make_jaxpr(f)(x)
jax.linear_transpose(f, x)
jax.numpy.apply_along_axis(f, 0, x)
jax.numpy.piecewise(x, [x > 0], [f, f])
jax.lax.custom_root(1, 2, f, f)
jax.lax.reduce(x, 0, f, (0,))
jax.lax.switch(0, [f], x)
jax.lax.platform_dependent(x, cpu=f)
jax.tree.flatten(x, f)
jax.tree.structure(x, is_leaf=f)
jax.tree_util.tree_all(x, is_leaf=f)
jax.custom_gradient(f)(x)
jax.custom_batching.custom_vmap(f)(x)
jax.experimental.checkify.checkify(f)(x)
jax.scipy.optimize.minimize(f, x, method="BFGS")
equinox.filter_closure_convert(f, x)
numpy.fromfunction(f, (3,))
scipy.optimize.minimize(f, x)
optax.tree_utils.tree_map_params(x, f, x)
optax.lbfgs().update(x, x, value_fn=f)
threading.Thread(target=f).start()
threading.Timer(1, f).start()
contextlib.ExitStack().callback(f)
concurrent.futures.ThreadPoolExecutor().submit(f, x)
re.sub("a", f, "b")
signal.signal(1, f)
bisect.bisect(x, 1, key=f)
""".splitlines()
# What sets the mesh that a step is called in, in its own file and in another: `mesh`, and `self.mesh`.
GLOBAL = f"{MESH}{STEP}def train(x):\n    with mesh:\n        return step(x)\n"
OF_SELF = (
    f"class T:\n    def __init__(self):\n        self.{MESH}        self.{STEP}"
    "    def train(self, x):\n        with self.mesh:\n            return self.step(x)\n"
)
SET_ELSEWHERE = {
    "attribute of a module": (GLOBAL, "import a\na.mesh = other\n"),
    "setattr of a module": (GLOBAL, "import a\nsetattr(a, 'mesh', other)\n"),
    "names of a module": (GLOBAL, "import a\nvars(a)['mesh'] = other\n"),
    "update of the names of a module": (GLOBAL, "import a\na.__dict__.update(mesh=other)\n"),
    "globals": (f"{GLOBAL}globals()['mesh'] = other\n", ""),
    "globals by a computed name": (f"{GLOBAL}def use(k, v):\n    globals()[k] = v\n", ""),
    "exec": (f"{GLOBAL}exec(settings)\n", ""),
    "attribute of an object": (OF_SELF, "from a import T\nt = T()\nt.mesh = other\n"),
    "attribute of a parameter": (OF_SELF, "def use(t, mesh):\n    t.mesh = mesh\n"),
    "setattr of an object": (OF_SELF, "from a import T\nsetattr(T(), 'mesh', other)\n"),
    "setattr of self": (f"{OF_SELF}    def use(self, k, v):\n        setattr(self, k, v)\n", ""),
    "update of self": (f"{OF_SELF}    def use(self, **k):\n        self.__dict__.update(k)\n", ""),
    "subclass": (OF_SELF, "import a\nclass U(a.T):\n    def use(self, mesh):\n        self.mesh = mesh\n"),
    "subclass of what is not in view": (
        OF_SELF,
        "def made(base):\n    class U(base):\n        def use(self, m):\n            self.mesh = m\n    return U\n",
    ),
    "property of a subclass": (
        OF_SELF,
        "import a\nclass U(a.T):\n    @property\n    def mesh(self):\n        return other\n",
    ),
}
# How a step comes to a second mesh as a value.
OTHER_MESH = f"{GLOBAL}small = Mesh(jax.devices()[:1], ('d',))\n"
PASSED = {
    "parameter": "def other(f, x):\n    with small:\n        return f(x)\nother(step, 1)\n",
    "default": "def other(x, f=step):\n    with small:\n        return f(x)\n",
    "partial": "def other(f, x):\n    with small:\n        return f(x)\nother(functools.partial(step), 1)\n",
    "list": "def other(fs):\n    with small:\n        for f in fs:\n            f(1)\nother([step])\n",
    "item": "T = {'a': step}\ndef other(x):\n    with small:\n        return T['a'](x)\n",
    "table": "T = {}\nT['a'] = step\ndef other(n, x):\n    with small:\n        return T[n](x)\n",
    "decorator that registers": "T = {}\ndef register(f):\n    T[f.__name__] = f\n    return f\nregister(step)\n"
    "def other(n, x):\n    with small:\n        return T[n](x)\n",
    "attribute": "class T:\n    def __init__(self, f):\n        self.f = f\n    def other(self, x):\n"
    "        with small:\n            return self.f(x)\nT(step)\n",
    "attribute of a foreign object": "import plugin\nplugin.hook = step\ndef other(x):\n    with small:\n"
    "        plugin.run(x)\n",
    "result": "def get():\n    return step\ndef other(x):\n    with small:\n        return get()(x)\n",
    "generator": "def get():\n    yield step\ndef other(x):\n    with small:\n        return next(get())(x)\n",
    "callback": "import plugin\nplugin.register(step)\ndef other(x):\n    with small:\n        plugin.run(x)\n",
    "thread": "def other(x, pool):\n    with small:\n        pool.submit(step, x)\n",
    "method of a parameter": "import plugin\nplugin.register(step)\ndef other(t, x):\n    with small:\n"
    "        t.run(x)\n",
    "lookup": "import a\ndef other(x):\n    with small:\n        return getattr(a, 'step')(x)\n",
    **{
        f"name that only a run knows: {read}": f"import a, importlib, sys\ndef other(n, x):\n    with small:\n"
        f"        return {read}(x)\n"
        for read in (
            *("globals()[n]", "globals().get(n)", "vars(a)[n]", "a.__dict__[n]", "getattr(a, f'st{n}')"),
            *(
                "getattr(importlib.import_module(n), n)",
                "getattr(sys.modules[__name__], n)",
                "[*globals().values()][n]",
            ),
        )
    },
    "table of all names": "names = globals()\ndef other(n, x):\n    with small:\n        return names[n](x)\n",
    "import": "def other(x):\n    from a import step\n    with small:\n        return step(x)\n",
}
# How another mesh is put in context in a way that is not followed, or by what stays as it is.
_STACK = "def other(x):\n    with contextlib.ExitStack() as s:\n        {}\n        return step(x)\n"
HIDDEN = {
    **{
        name: _STACK.format(text)
        for name, text in {
            "keyword": "s.enter_context(cm=small)",
            "star": "s.enter_context(*[small])",
            "method as a value": "enter = s.enter_context; enter(small)",
            "map": "list(map(s.enter_context, [small]))",
            "method of the class of stacks": "contextlib.ExitStack.enter_context(s, small)",
            "method by its text": "getattr(s, 'enter_context')(small)",
            "method of the mesh as a value": "enter = small.__enter__; enter()",
            "method of its class": "type(small).__enter__(small)",
            "methodcaller": "operator.methodcaller('__enter__')(small)",
        }.items()
    },
    "context of today": "def other(x):\n    with jax.set_mesh(small):\n        return step(x)\n",
    "decorator that is passed": "def under(m):\n    @m\n    def run(x):\n        return step(x)\n    return run\n"
    "other = under(small)\n",
    "mesh that is called": "def under(m):\n    return m(step)\nother = under(small)\n",
    "decorator of a class": "@small\nclass T:\n    def __init__(self, x):\n        self.y = step(x)\n",
    "decorator out of view": "import plugin\n@plugin.under(small)\ndef other(x):\n    return step(x)\n",
    "step and mesh out of view": "import plugin\nplugin.run([step], small)\n",
    "step out of view": "import plugin\nplugin.run(step)\n",
}


def modernized(program: str, beside: str = "") -> str:
    files = source_files({"a.py": f"{HEAD}{program}".encode(), "b.py": beside.encode()})
    result, _ = modernize_project(files, REGISTRY, load=lambda _: None)
    assert result.failure is None
    return result.result.decode()


def keeps_context(program: str) -> bool:
    """Whether a mesh stays what code out of view sees: no step is compiled for it alone."""
    text = modernized(f"{STEP}{MESH}{program}")
    assert ("jax.set_mesh(" in text) is not ("compat.mesh_context(" in text or "with mesh:" in text)
    return "jax.set_mesh(" not in text


def keeps_gradients(program: str) -> bool:
    """Whether gradients stay what they were in a function that runs on every device in place of the `with`."""
    mapped = re.sub(
        r"^( *)with mesh:\n *step\(x\)\n", rf"\1{MAPPED}\n\1def mapped(x):\n\1    pass\n", program, flags=re.M
    )
    text = modernized(f"{MESH}{mapped}")
    assert mapped != program
    assert "compat.shard_map" in text or "jax.shard_map" in text
    return "compat.shard_map" in text or "check_vma=False" in text


@pytest.mark.parametrize("what", OUT_OF_VIEW)
def test_code_out_of_view_may_read_the_mesh(what: str) -> None:
    assert keeps_context(OUT_OF_VIEW[what])


@pytest.mark.parametrize("what", sorted(OUT_OF_VIEW.keys() - NOT_MAPPED))
def test_code_out_of_view_may_take_gradients(what: str) -> None:
    assert keeps_gradients(OUT_OF_VIEW[what])


@pytest.mark.parametrize("what", GRADIENTS)
def test_gradients_in_view_are_seen(what: str) -> None:
    assert keeps_gradients(GRADIENTS[what])


@pytest.mark.parametrize("call", CALL_BACK)
def test_functions_of_libraries_that_call_what_they_are_given(call: str) -> None:
    assert keeps_gradients(f"{IMPORTS}def train(x, f):\n    with mesh:\n        step(x)\n        {call}\n")


def test_the_arguments_of_a_mapped_function_are_trees_of_arrays() -> None:
    program = (
        f"{MESH}{MAPPED}\ndef mapped(xs):\n    for x in enumerate(xs):\n        pass\n    return [x for x in xs]\n"
    )
    assert "jax.shard_map" in modernized(program)


@pytest.mark.parametrize("what", IN_VIEW)
def test_code_in_view_does_neither(what: str) -> None:
    assert not keeps_context(IN_VIEW[what])
    assert not keeps_gradients(IN_VIEW[what])


@pytest.mark.parametrize("what", SET_ELSEWHERE)
def test_a_mesh_that_may_be_set_elsewhere_has_no_name(what: str) -> None:
    text = modernized(*SET_ELSEWHERE[what])
    assert "NamedSharding(" not in text
    assert "jax.set_mesh(" in text or "compat.mesh_context(" in text


@pytest.mark.parametrize("beside", ["class U(T):\n    x = lock\n", "T.x = lock\n", "setattr(T, 'x', lock)\n"])
def test_a_file_without_old_names_may_set_what_is_entered(beside: str) -> None:
    made = MESH.removeprefix("mesh = ")
    program = f"{STEP}class T:\n    x = {made}    def train(self, x):\n        with self.x:\n            step(x)\n"
    assert "jax.set_mesh(" in modernized(program, "from a import T\n")
    assert "jax.set_mesh(" not in modernized(program, f"from a import T\n{beside}")


@pytest.mark.parametrize("program", [GLOBAL, OF_SELF])
def test_a_mesh_that_is_set_once_has_a_name(program: str) -> None:
    other = "mesh = 1\nclass T:\n    def __init__(self, mesh):\n        self.mesh = mesh\n"
    assert "NamedSharding(" in modernized(program, f"{other}def use(o, k, v):\n    setattr(o, k, v)\n")


@pytest.mark.parametrize("what", PASSED)
def test_a_step_that_another_mesh_may_be_around_names_none(what: str) -> None:
    assert "NamedSharding(" not in modernized(f"{OTHER_MESH}{PASSED[what]}")


@pytest.mark.parametrize("what", HIDDEN)
def test_a_step_that_may_run_in_a_hidden_mesh_looks_for_it(what: str) -> None:
    assert "compat.pjit" in modernized(f"{OTHER_MESH}{HIDDEN[what]}")


def test_a_step_that_a_module_with_multimesh_calls_in_a_mesh_looks_for_it() -> None:
    other = "import mmruntime\nfrom a import small, step\ndef other(x):\n    with small:\n        return step(x)\n"
    assert "compat.pjit" in modernized(OTHER_MESH, other)


@pytest.mark.parametrize("read", ["x", "globals()['x']", "vars(a).get('x')", "getattr(a, f'x_{n}')", "a.__dict__['x']"])
def test_a_step_that_no_other_mesh_is_around_names_its_own(read: str) -> None:
    other = f"import a\ndef other(n, x):\n    with small:\n        return {read}\n"
    assert "NamedSharding(" in modernized(f"{OTHER_MESH}{other}")


def test_a_file_apart_from_jax_that_looks_up_anything_runs_no_step() -> None:
    lookup = "import importlib\ndef load(mesh, name):\n    return getattr(importlib.import_module(mesh), name)\n"
    other = f"{OTHER_MESH}def other(f, x):\n    with small:\n        return f(x)\n"
    assert "NamedSharding(" in modernized(other, lookup)
    assert "NamedSharding(" not in modernized(f"{other}from b import load\nother(load('a', 'step'), 1)\n", lookup)


# What replaces a name of JAX, before it is used.
REPLACED = (
    "jax.tree_map = g\n",
    "setattr(jax, 'tree_map', g)\n",
    "vars(jax)['tree_map'] = g\n",
    "jax.__dict__.update(tree_map=g)\n",
    "for n in names:\n    setattr(jax, n, g)\n",
    "import jax as j\nj.tree_map = g\n",
    "import sys\nsys.modules['jax'] = g\n",
    "from sys import modules\nmodules.setdefault('jax', g)\n",
    "globals()['jax'] = g\n",
    "for n, v in {'jax': g}.items():\n    globals()[n] = v\n",
    "exec('jax = g')\n",
    "# file b.py\nimport jax\nsetattr(jax, 'tree_map', g)\n",
    "# file b.py\nimport a\na.jax = g\n",
)


@pytest.mark.parametrize("replaced", REPLACED)
def test_a_name_that_the_program_replaces_stays(replaced: str) -> None:
    own, _, other = replaced.partition("# file b.py\n")
    files = {"a.py": f"import jax\n{own}jax.tree_map(f, x)\n".encode(), "b.py": other.encode()}
    result, _ = modernize_project(source_files(files), REGISTRY, load=lambda _: None)
    assert not result.changed
    assert any("sets this name itself" in each.reason for each in result.left)


# What sets a name for `jax`, before it is used.
SET = (
    "other = jax\n{}",
    "first = jax\nother = first\n{}".replace("{}", "exec('first = g')\n"),
    "from b import other\n# file b.py\nimport jax\nother = jax\n{}",
)


@pytest.mark.parametrize("form", SET)
@pytest.mark.parametrize("setting", ["exec('other = g')\n", "exec(text)\n", "globals()[name] = g\n"])
def test_another_name_for_it_that_the_program_may_set_stays(form: str, setting: str) -> None:
    own, _, other = form.format(setting).partition("# file b.py\n")
    files = {"a.py": f"import jax\n{own}other.tree_map(f, x)\n".encode(), "b.py": other.encode()}
    result, _ = modernize_project(source_files(files), REGISTRY, load=lambda _: None)
    assert not result.changed
    assert any("sets this name itself" in each.reason for each in result.left)


def test_code_that_is_not_seen_sets_no_import() -> None:
    data = b"import jax\nexec(open('settings.py').read())\njax.tree_map(f, x)\n"
    (result,) = modernize_project(source_files({"a.py": data}), REGISTRY, load=lambda _: None)
    assert b"jax.tree.map(f, x)" in result.result


@pytest.mark.parametrize("replaced", REPLACED[:8])
def test_an_import_of_a_name_that_the_program_replaces_stays(replaced: str) -> None:
    data = f"import jax\n{replaced}from jax import tree_map\ntree_map(f, x)\n".encode()
    (result,) = modernize_project(source_files({"a.py": data}), REGISTRY, load=lambda _: None)
    assert not result.changed
    assert any("sets this name itself" in each.reason for each in result.left)


@pytest.mark.parametrize("set_it", ["jax.tree_map = jax.tree_util.tree_map", "setattr(jax, 'tree_map', g)"])
def test_what_is_set_for_want_of_a_name_does_not_count(set_it: str) -> None:
    data = f"import jax\nif not hasattr(jax, 'tree_map'):\n    {set_it}\njax.tree_map(f, x)\n".encode()
    (result,) = modernize_project(source_files({"a.py": data}), REGISTRY, load=lambda _: None)
    assert b"jax.tree.map(f, x)" in result.result


# Lists of a class that may be a module of nnx, and optimizers that an update without a model may be of: whether each
# is rewritten, told, or neither.
NNX = "from flax import nnx\nimport jax.numpy as jnp, optax, plugin\n"
LISTS = "    def __init__(self, rngs, make, names):\n        self.layers = [{} for n in names]\n"
LINEAR = "nnx.Linear(2, 2, rngs=rngs)"
NONE = "class A(nnx.Module):\n    def __init__(self):\n        self.cache = None\n"
STEP_OF_NNX = "def step(model, opt, metrics, b):\n    loss, grads = nnx.value_and_grad(f)(model)\n    {}\n"
OPTIMIZER = "o = nnx.Optimizer(m, optax.adam(1), wrt=nnx.Param)\n"
OF_NNX = {
    f"class A(plugin.Base):\n{LISTS.format(LINEAR)}": "told",
    f"from plugin import Base\nclass B(Base): ...\nclass A(B):\n{LISTS.format(LINEAR)}": "told",
    f"class A(optax.Base):\n{LISTS.format(LINEAR)}": "",
    f"class A(nnx.Module):\n{LISTS.format('plugin.Block(rngs=rngs)')}": "told",
    f"class A(nnx.Module):\n{LISTS.format('make(n)')}": "told",
    f"R = {{}}\nclass A(nnx.Module):\n{LISTS.format('R[n](rngs=rngs)')}": "told",
    f"class A(nnx.Module):\n{LISTS.format('str(n)')}": "",
    f"class A(nnx.Module): ...\ndef fill(a: A, rngs):\n    a.layers = [{LINEAR}]\n": "rewritten",
    f"class A: ...\ndef fill(a: A, rngs):\n    a.layers = [{LINEAR}]\n": "",
    f"class A(nnx.Module): ...\ndef fill(a, rngs):\n    a.layers = [{LINEAR}]\nfill(A(), 1)\n": "told",
    f"class A: ...\ndef fill(a, rngs):\n    a.layers = [{LINEAR}]\nfill(A(), 1)\n": "",
    f"class A(nnx.Module, pytree=True):\n{LISTS.format(LINEAR)}": "rewritten",
    f"class A(nnx.Module, pytree=False):\n{LISTS.format(LINEAR)}": "",
    f"class A(nnx.Module, **plugin.options):\n{LISTS.format(LINEAR)}": "told",
    f"class A(nnx.Sequential):\n{LISTS.format(LINEAR)}": "rewritten",
    f"class A(nnx.State):\n{LISTS.format(LINEAR)}": "",
    f"class A0(nnx.Module): ...\n{''.join(f'class A{n + 1}(A{n}): ...{chr(10)}' for n in range(8))}"
    f"class A(A8):\n{LISTS.format(LINEAR)}": "told",
    **{
        f"import functools\nclass A(nnx.Module):\n    def step(self, x): ...\na = A()\n{use}\n": "told"
        for use in ("nnx.jit(f=a.step)", "functools.partial(nnx.jit, a.step)()", "nnx.jit(donate_argnums=0)(a.step)")
    },
    f"{NONE}class B(A):\n    def fill(self):\n        self.cache = jnp.ones(3)\n": "rewritten",
    f"{NONE}def fill(a: A):\n    a.cache = jnp.ones(3)\n": "rewritten",
    f"{NONE}class C: ...\ndef fill(a: C):\n    a.cache = jnp.ones(3)\n": "",
    f"{NONE}def fill(a):\n    a.cache = jnp.ones(3)\n": "",
    STEP_OF_NNX.format("opt.update(grads)"): "told",
    f"{OPTIMIZER}{STEP_OF_NNX.format('opt.update(grads)')}": "rewritten",
    f"{OPTIMIZER}{STEP_OF_NNX.format('metrics.update(loss)')}": "",
    STEP_OF_NNX.format("opt.update(grads)").replace("opt,", "opt: nnx.ModelAndOptimizer,"): "",
    f"{STEP_OF_NNX.format('opt.update(grads)')}step(m, nnx.ModelAndOptimizer(m, optax.adam(1)), 1, 2)\n": "",
    f"{OPTIMIZER}{STEP_OF_NNX.format('opt.update(model, grads)')}": "",
}


@pytest.mark.parametrize("program", OF_NNX)
def test_what_may_be_of_nnx_is_told(program: str) -> None:
    result = modernize_text(f"{NNX}{program}")
    found = "rewritten" if result.changed else "told" if result.refusals or result.left else ""
    assert found == OF_NNX[program]


# Functions that JAX traces, and that run one which enters a mesh: `jax.set_mesh` raises there.
TRACED = (
    "jax.jit(train)(1)\n",
    "def outer(x):\n    return train(x)\njax.jit(outer)(1)\n",
    "@jax.jit\ndef outer(x):\n    return jax.vmap(train)(x)\n",
    "def outer(f, x):\n    return f(x)\njax.jit(lambda x: outer(train, x))(1)\n",
    "class T:\n    def run(self, x):\n        return train(x)\n    def go(self, x):\n"
    "        return jax.jit(self.run)(x)\n",
    "@jax.jit\ndef outer(x, hook):\n    hook(x)\n    return train(x)\n",
    "T = {'a': train}\ndef outer(n, x):\n    return jax.jit(T['a'])(x)\n",
)


@pytest.mark.parametrize("traced", TRACED)
def test_no_mesh_is_set_where_a_traced_function_may_run(traced: str) -> None:
    program = f"{STEP}def train(x):\n    m = Mesh(jax.devices(), ('d',))\n    with m:\n        return step(x)\n"
    assert "jax.set_mesh(" not in modernized(f"{program}{traced}")
    assert "jax.set_mesh(" in modernized(f"{program}jax.jit(len)\n")


# What `jax.pmap` returns comes to other files, where no name says so.
def test_shards_of_a_mapped_result_are_told_in_another_file() -> None:
    for read, is_told in {
        "x.addressable_shards[0].data": True,
        "x.addressable_shards[0].data.squeeze(0)": False,
    }.items():
        files = {
            "a.py": b"import jax\nfrom b import get\nget(jax.pmap(len)(x)[0])\n",
            "b.py": f"import jax\ndef get(x):\n    return {read}\n".encode(),
        }
        _, result = modernize_project(source_files(files), REGISTRY, load=lambda _: None)
        assert bool(result.left) is is_told


def test_axes_that_another_file_may_mean_explicit_are_not_guessed() -> None:
    files = {
        "a.py": b"import jax\nm = jax.make_mesh((4,), ('a',))\n",
        "b.py": b"import jax\nfrom a import m\njax.reshard(x, y)\n",
    }
    result, _ = modernize_project(source_files(files), REGISTRY, load=lambda _: None)
    assert not result.changed
    assert "`reshard` of b.py" in result.refusals[0].reason


# Objects of JAX come to files that do not name it.
WITHOUT_JAX = {
    "import jax\nx = jax.jit(len).lower(1).compile()\n": ("x.input_layouts()", "x.cost_analysis()[0]"),
    "import jax\nx = jax.sharding.NamedSharding(m, s)\n": ("x.is_compatible_aval((8,))", "x.memory_kind"),
    "import jax\nx = jax.pmap(len)(1)\n": ("x.addressable_data(0)", "x.device()"),
    "import jax\nfrom flax.core import FrozenDict\nx = FrozenDict({})\n": ("x.unfreeze()", "isinstance(x, FrozenDict)"),
    "from jax.experimental.custom_partitioning import custom_partitioning as p\n@p\ndef x(y): ...\n": (
        "x.def_partition(partition=f, infer_sharding_from_operands=g)",
    ),
}


@pytest.mark.parametrize("made", WITHOUT_JAX)
def test_what_comes_to_a_file_that_does_not_name_jax_is_told(made: str) -> None:
    for use in WITHOUT_JAX[made]:
        files = {"a.py": made.encode(), "b.py": f"from a import FrozenDict, x\n{use}\n".encode()}
        loaded = {f"./{path}": data for path, data in files.items()}
        _, result = modernize_project(source_files(files), REGISTRY, load=loaded.get)
        assert result.changed or result.refusals or result.left, use
