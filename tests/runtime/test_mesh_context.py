"""`mmruntime.compat.mesh_context` and `pjit` are what `with mesh:` and `pjit` were.

JAX still has both, deprecated, so the same programs run with each. What the old JAX made is in the fixtures.
"""

import contextlib
import functools
import threading
import types
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from mmruntime import compat

MESH = Mesh(np.array(jax.devices()).reshape(4, 2), ("x", "y"))
OTHER = Mesh(np.array(jax.devices()[::-1]).reshape(2, 4), ("x", "y"))
LINE = Mesh(np.array(jax.devices()), ("z",))

NEW = types.SimpleNamespace(
    pjit=compat.pjit, mesh_context=compat.mesh_context, with_sharding_constraint=compat.with_sharding_constraint
)
# What is written where a constraint finds the mesh of the context by itself.
PLAIN = types.SimpleNamespace(
    pjit=compat.pjit, mesh_context=compat.mesh_context, with_sharding_constraint=jax.lax.with_sharding_constraint
)


@pytest.fixture(scope="module")
def old():
    """JAX's own, and how `with mesh:` is spelled for it."""
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        from jax.experimental.pjit import pjit

    @contextlib.contextmanager
    def mesh_context(mesh):
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning), mesh:
            yield mesh

    constrain = jax.lax.with_sharding_constraint
    return types.SimpleNamespace(pjit=pjit, mesh_context=mesh_context, with_sharding_constraint=constrain)


def x():
    return np.arange(16, dtype=np.float32).reshape(8, 2)


def specs(api):
    f = api.pjit(lambda a, b: (a + b, b), in_shardings=(P("x"), None), out_shardings=(P("x", "y"), None))
    with api.mesh_context(MESH):
        return f(x(), np.float32(2))


def prefixes_and_trees(api):
    f = api.pjit(lambda p, s: p["w"] * s, in_shardings=[{"w": P("x"), "b": None}, None], out_shardings=P("y"))
    with api.mesh_context(MESH):
        return f({"w": x(), "b": (x(), None)}, 3.0)


def no_specs(api):
    f = api.pjit(lambda a: a + 1)
    outside = f(x())
    with api.mesh_context(MESH):
        return outside, f(x())


def every_mesh(api):
    f = api.pjit(lambda a: api.with_sharding_constraint(2 * a, P(None, "y")), in_shardings=P("x"))
    found = []
    for mesh in (MESH, OTHER, MESH):
        with api.mesh_context(mesh):
            found.append(f(x()))
    return found


def plain_jit_that_constrains(api):
    f = jax.jit(lambda a: api.with_sharding_constraint({"a": 2 * a, "b": a}, {"a": P("x", "y"), "b": None}))
    found = []
    for mesh in (MESH, OTHER):
        with api.mesh_context(mesh):
            found.append(f(x()))
    return found, [np.asarray(a) for a in jax.tree.leaves(found)]


def moves_nothing(api):
    with api.mesh_context(MESH):
        made = jnp.zeros(4), jnp.asarray(x()), jax.random.normal(jax.random.key(0), (4,))
        return made, jax.jit(lambda a: a + 1)(x()), made[1] * 2, jax.device_put(x())


def static_and_donated(api):
    f = api.pjit(
        lambda n, a, b: n * a + b,
        in_shardings=(P("x"), None),
        out_shardings=P("x"),
        static_argnums=0,
        donate_argnums=(1,),
    )
    given = jax.device_put(x(), NamedSharding(MESH, P("x")))
    with api.mesh_context(MESH):
        out = f(3, given, 1.0)
    return out, given.is_deleted()


def lowered(api):
    f = api.pjit(lambda a: a * 2, in_shardings=P("x"), out_shardings=P(None, "y"))
    with api.mesh_context(MESH):
        compiled = f.lower(jax.ShapeDtypeStruct((8, 2), jnp.float32)).compile()
    return compiled(x())


def nested_meshes(api):
    f = api.pjit(lambda a: a, out_shardings=P("x"))
    with api.mesh_context(MESH):
        with api.mesh_context(OTHER):
            inner = f(x())
        return inner, f(x())


def context_inside_jit(api):
    @jax.jit
    def f(a):
        with api.mesh_context(MESH):
            return api.with_sharding_constraint(a + 1, P("x"))

    return f(x())


def pjit_inside_pjit(api):
    inner = api.pjit(lambda a: a + 1, in_shardings=P(None, "y"), out_shardings=P("x"))
    with api.mesh_context(MESH):
        return api.pjit(lambda a: inner(2 * a), in_shardings=None)(x())


def gradient_outside(api):
    f = api.pjit(lambda a: (a**2).sum(), in_shardings=P("x"), out_shardings=None)
    g = api.pjit(lambda a: (a**3).sum())
    with api.mesh_context(MESH):
        return jax.grad(f)(x()), jax.value_and_grad(g)(x()), jax.vmap(g)(x())


def method(api):
    class Model:
        @functools.partial(api.pjit, static_argnums=0, in_shardings=P("x"), out_shardings=P("x"))
        def apply(self, a):
            return a + 1

    with api.mesh_context(MESH):
        return Model().apply(x()), Model.apply.__name__


def shardings_without_mesh(api):
    f = api.pjit(lambda a, b: a + b, in_shardings=(NamedSharding(MESH, P("x")), None), out_shardings=None)
    with api.mesh_context(MESH):
        inside = f(x(), 1.0)
    return inside, f(x(), 1.0)


def without_jit(api):
    f = api.pjit(lambda a: jnp.ones(3) + a.sum(), in_shardings=P("x"))
    with api.mesh_context(MESH), jax.disable_jit():
        return f(x())


def constraints(api):
    constrain = api.with_sharding_constraint

    def body(a):
        return constrain({"a": a + 1, "b": a}, {"a": P("x", "y"), "b": None})

    with api.mesh_context(MESH):
        eager = body(x())
        plain = jax.jit(body)
        first = plain(x()), jax.grad(lambda a: jnp.sum(plain(a)["a"] ** 2))(x()), jax.vmap(body)(x()[None])
        named = jax.jit(body, in_shardings=NamedSharding(MESH, P("x")))(x())
        pairs = jax.tree.map(constrain, [jnp.ones((8, 2))], [P("y")])
    with api.mesh_context(OTHER):
        second = plain(x())
    return eager, first, named, pairs, second


def of_another_library(api):
    """What is not given to the tool asks JAX for the mesh."""
    with api.mesh_context(MESH):
        return jax.jit(lambda a: jax.lax.with_sharding_constraint(a, P("x")))(x())


PROGRAMS = [
    specs,
    prefixes_and_trees,
    no_specs,
    every_mesh,
    plain_jit_that_constrains,
    moves_nothing,
    static_and_donated,
    lowered,
    nested_meshes,
    context_inside_jit,
    pjit_inside_pjit,
    gradient_outside,
    constraints,
    method,
    shardings_without_mesh,
    without_jit,
    of_another_library,
]


def told(tree):
    return [
        (
            np.asarray(leaf).tolist(),
            {device.id: str(index) for device, index in leaf.sharding.devices_indices_map(leaf.shape).items()},
        )
        if isinstance(leaf, jax.Array)
        else leaf
        for leaf in jax.tree.leaves(jax.tree.map(lambda a: a.tolist() if isinstance(a, np.ndarray) else a, tree))
    ]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_is_what_jax_had(program, old):
    expected = told(program(old))
    for api in (NEW, PLAIN):
        assert told(program(api)) == expected


def test_where_things_are():
    """Not only as JAX has it, in case JAX changes it."""
    inner, outer = nested_meshes(NEW)
    assert inner.sharding == NamedSharding(OTHER, P("x"))
    assert outer.sharding == NamedSharding(MESH, P("x"))
    assert len(no_specs(NEW)[1].sharding.device_set) == 8
    assert {len(a.sharding.device_set) for a in jax.tree.leaves(moves_nothing(NEW))} == {1}


def test_old_names_of_arguments():
    f = compat.pjit(lambda a: a, in_axis_resources=P("x"), out_axis_resources=None)
    with compat.mesh_context(MESH):
        assert f(x()).is_fully_replicated
        assert compat.with_sharding_constraint(x(), axis_resources=P("x")).sharding == NamedSharding(MESH, P("x"))
        assert compat.pjit(fun=lambda a: a, out_shardings=P("y"))(x()).sharding == NamedSharding(MESH, P("y"))
    for given in (
        lambda: compat.pjit(f, None, in_axis_resources=None),
        lambda: compat.pjit(f, out_shardings=None, out_axis_resources=P()),
        lambda: compat.with_sharding_constraint(x(), P(), axis_resources=P()),
    ):
        with pytest.raises(ValueError, match="are the same argument, and both were given"):
            given()
    with pytest.raises(TypeError, match="no `shardings` given"):
        compat.with_sharding_constraint(x())


def test_specs_need_a_mesh():
    for call in (
        lambda: compat.pjit(lambda a: a, in_axis_resources=(P("x"),))(x()),
        lambda: compat.with_sharding_constraint(x(), {"a": None, "b": P("x")}),
    ):
        for caught in (RuntimeError, ValueError):
            with pytest.raises(caught, match=r"has P.*'x'.*no mesh is in context"):
                call()
    with compat.mesh_context(MESH), pytest.raises(ValueError, match="nowhere"):
        compat.pjit(lambda a: a, in_shardings=P("nowhere"))(x())


@pytest.mark.parametrize("constrain", [compat.with_sharding_constraint, jax.lax.with_sharding_constraint])
def test_another_mesh_inside_a_compiled_function(constrain):
    """JAX's own `pjit` of today cannot do this; that of 0.4.13 did."""

    @functools.partial(compat.pjit, in_shardings=None)
    def f(a):
        with compat.mesh_context(LINE):
            b = constrain(a + 1, P("z"))
        return b, constrain(a + 1, P("x"))

    with compat.mesh_context(MESH):
        lined, split = f(x())
    assert lined.sharding.is_equivalent_to(NamedSharding(LINE, P("z")), 2)
    assert split.sharding.is_equivalent_to(NamedSharding(MESH, P("x")), 2)

    with jax.set_mesh(MESH):
        (lined, split) = jax.jit(f.__wrapped__, in_shardings=P())(x())
    assert lined.sharding.is_equivalent_to(NamedSharding(LINE, P("z")), 2)
    assert split.sharding.is_equivalent_to(NamedSharding(MESH, P("x")), 2)


def test_what_a_function_sees_while_it_is_traced():
    seen = []

    def function():
        return compat.pjit(lambda a: seen.append((compat.current_mesh(), jax.sharding.get_abstract_mesh())))

    with compat.mesh_context(MESH):
        function()(x())
        function().eval_shape(x())
        function().trace(x())
    assert seen == [(MESH, MESH.abstract_mesh)] * 3


def test_the_innermost_mesh_is_current():
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning), contextlib.ExitStack() as stack:
        for mesh, make in (
            (MESH, compat.mesh_context),
            (OTHER, compat.mesh_context),
            (MESH, jax.set_mesh),
            (OTHER, compat.mesh_context),
        ):
            stack.enter_context(make(mesh))
            assert compat.current_mesh() == mesh
        with compat.mesh_context(MESH), OTHER:
            assert compat.current_mesh() == OTHER
    assert compat.current_mesh().empty


def test_entering_and_leaving():
    context = compat.mesh_context(MESH)
    with context as mesh, context:
        assert mesh is MESH
    assert compat.current_mesh().empty
    with pytest.raises(KeyError), compat.mesh_context(OTHER):
        raise KeyError
    assert compat.current_mesh().empty
    compat.mesh_context(MESH).__enter__()
    with compat.mesh_context(OTHER):
        pass
    assert compat.current_mesh() == MESH
    compat.mesh_context(MESH).__exit__(None, None, None)
    assert compat.current_mesh().empty
    with pytest.raises(RuntimeError, match="without being entered"):
        compat.mesh_context(MESH).__exit__(None, None, None)


def test_an_assigned_mesh_stays_until_a_context_is_left():
    """As `thread_resources.env` is set by leaving a `with`, to that of the surrounding one."""
    compat.assign_mesh(MESH)
    compat.assign_mesh(OTHER)
    assert compat.current_mesh() == OTHER
    with compat.mesh_context(LINE):
        assert compat.current_mesh() == LINE
        compat.assign_mesh(MESH)
        assert compat.current_mesh() == MESH
        with compat.mesh_context(OTHER):
            assert compat.current_mesh() == OTHER
        assert compat.current_mesh() == LINE
        compat.assign_mesh(MESH)
    assert compat.current_mesh().empty
    compat.assign_mesh(MESH)
    compat.assign_mesh(EMPTY)
    assert compat.current_mesh().empty
    with compat.mesh_context(OTHER):
        pass


EMPTY = Mesh(np.empty((), dtype=object), ())


@pytest.mark.parametrize("constrain", [compat.with_sharding_constraint, jax.lax.with_sharding_constraint])
def test_an_assigned_mesh_outlives_the_function_that_assigns_it(constrain):
    """As with JAX 0.4.13: specs mean it from then on, until the context around the call is left."""
    x, wide = np.ones((8, 4), np.float32), Mesh(np.array(jax.devices()).reshape(2, 4), ("x", "y"))

    def assigning(mesh, *, inside=None):
        @functools.partial(compat.pjit, in_shardings=None)
        def f(x):
            with contextlib.nullcontext() if inside is None else compat.mesh_context(inside):
                compat.assign_mesh(mesh)
                assert compat.current_mesh() == mesh
                return constrain(x + 1, P("y"))

        return f

    with compat.mesh_context(MESH):
        for f in (assigning(wide), jax.jit(lambda x: constrain(x, P("y")))):
            assert f.trace(x).jaxpr.eqns[-1].params["sharding"].is_equivalent_to(NamedSharding(wide, P("y")), 2)
            assert compat.current_mesh() == wide
    _assert_in_no_context(x)
    with compat.mesh_context(MESH):
        assigning(wide, inside=LINE)(x)
        assert compat.current_mesh() == MESH
    _assert_in_no_context(x)
    for inside in (None, wide):
        with compat.mesh_context(MESH), pytest.raises(RuntimeError, match=r"mesh in context|no mesh is in context"):
            assigning(EMPTY, inside=inside)(x)
        _assert_in_no_context(x)


@pytest.mark.parametrize("outer_assigns", [None, "before", "after", "both"])
def test_a_mesh_that_a_nested_function_assigns_is_that_of_the_outer_one_from_then_on(outer_assigns):
    """As with JAX 0.4.13, where all functions of a thread share one environment."""
    x, wide = np.ones((8, 4), np.float32), Mesh(np.array(jax.devices()).reshape(2, 4), ("x", "y"))
    seen = []

    @functools.partial(compat.pjit, in_shardings=None)
    def inner(x):
        seen.append(compat.current_mesh())
        compat.assign_mesh(wide)
        seen.append(compat.current_mesh())
        return compat.with_sharding_constraint(x + 1, P("y"))

    @functools.partial(compat.pjit, in_shardings=None)
    def outer(x):
        if outer_assigns in ("before", "both"):
            compat.assign_mesh(LINE)
        x = inner(x)
        seen.append(compat.current_mesh())
        x = compat.with_sharding_constraint(2 * x, P("y"))
        x = jax.lax.with_sharding_constraint(3 * x, P("y"))
        if outer_assigns in ("after", "both"):
            compat.assign_mesh(OTHER)
            seen.append(compat.current_mesh())
        return x

    last = [OTHER] if outer_assigns in ("after", "both") else []
    with compat.mesh_context(MESH):
        traced = outer.trace(x)
        assert seen == [LINE if outer_assigns in ("before", "both") else MESH, wide, wide, *last]
        layouts = [eqn.params["sharding"] for eqn in traced.jaxpr.eqns if "sharding" in eqn.params]
        assert len(layouts) == 2
        assert all(each.is_equivalent_to(NamedSharding(wide, P("y")), 2) for each in layouts)
        assert compat.current_mesh() == (last or [wide])[0]
    _assert_in_no_context(x)


def _assert_in_no_context(x):
    assert compat.current_mesh().empty
    assert jax.sharding.get_mesh().empty
    assert jax.jit(lambda x: x + 1)(x).sharding.device_set == {jax.devices()[0]}


def test_an_empty_mesh_leaves_none_in_context():
    with compat.mesh_context(MESH):
        compat.assign_mesh(EMPTY)
        assert compat.current_mesh().empty
        with compat.mesh_context(OTHER):
            assert compat.current_mesh() == OTHER
        assert compat.current_mesh() == MESH


def test_as_a_decorator_and_in_a_stack():
    @compat.mesh_context(MESH)
    def f():
        return compat.current_mesh()

    assert f() == f() == MESH
    with contextlib.ExitStack() as stack:
        assert stack.enter_context(compat.mesh_context(OTHER)) is OTHER
        assert f() == MESH
        assert compat.current_mesh() == OTHER
    assert compat.current_mesh().empty


def test_another_context_manager_is_entered_as_it_is():
    entered = []

    @contextlib.contextmanager
    def other():
        entered.append(compat.current_mesh().empty)
        with contextlib.suppress(KeyError):
            yield 3

    with compat.mesh_context(other()) as value:
        assert value == 3
        raise KeyError
    assert entered == [True]


def test_a_context_belongs_to_one_thread():
    """As a generator that is left while it is suspended leaves the mesh to its caller."""
    seen = {}

    def elsewhere():
        seen["at first"] = compat.current_mesh().empty
        with compat.mesh_context(OTHER):
            seen["inside"] = compat.current_mesh()

    def suspended():
        with compat.mesh_context(OTHER):
            yield

    with compat.mesh_context(MESH):
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert compat.current_mesh() == MESH
        steps = suspended()
        next(steps)
        assert compat.current_mesh() == OTHER
        steps.close()
        assert compat.current_mesh() == MESH
    assert seen == {"at first": True, "inside": OTHER}


def test_clear_cache_and_texts():
    traced = []

    def f(a):
        traced.append(0)
        return a

    g = compat.pjit(f, in_shardings=None)
    assert repr(g) == f"<pjit of {f!r}>"
    with compat.mesh_context(MESH):
        g(x())
        g(x())
        assert len(traced) == 1
        g.clear_cache()
        g(x())
    assert g.__wrapped__ is f
