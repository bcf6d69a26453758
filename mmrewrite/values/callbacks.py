"""Functions of libraries that call what they are given: with which arguments, and what they give then.

Both directions read this: a value is followed back through what a loop of JAX gives, and the parameters of the body
get what the loop starts with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from mmrewrite.values.value import ELEMENT, Access, By, CallArguments, Key, Path, Value, item

if TYPE_CHECKING:
    from mmrewrite.values.flow import ValueFlow


class _Given(NamedTuple):
    """An argument that functions are given, by place and name: itself, or one element after another."""

    place: int
    name: str
    by_element: bool = False


class _Form(NamedTuple):
    """How a function of a library calls others.

    Attributes:
        functions: The places and the names of those that it calls.
        operands: What follows this place they are given.
        given: Else what they are given.
        start: What it gives if no function is called, and the first time what they are given first.
        steps: What is done to its result to have that of a function.
        is_held: Whether the functions are in a container.
    """

    functions: Sequence[tuple[int, str]]
    operands: int | None = None
    given: Sequence[_Given] = ()
    start: _Given | None = None
    steps: Path = ()
    is_held: bool = False


_CONTROL = {
    "cond": _Form(((1, "true_fun"), (2, "false_fun")), 3),
    "switch": _Form(((1, "branches"),), 2, is_held=True),
    "fori_loop": _Form(
        ((2, "body_fun"),), None, (_Given(0, "lower"), _Given(3, "init_val")), start=_Given(3, "init_val")
    ),
    "while_loop": _Form(
        ((1, "body_fun"), (0, "cond_fun")), None, (_Given(2, "init_val"),), start=_Given(2, "init_val")
    ),
}
_SCAN = _Form(((0, "f"),), None, (_Given(1, "init"), _Given(2, "xs", True)), start=_Given(1, "init"))
_OF_ALL = _Form(((0, "fun"),), 1)
_FORMS: Mapping[str, _Form] = {
    **{
        f"{home}.{name}": form
        for home in ("jax.lax", "flax.nnx", "flax.linen", "haiku")
        for name, form in _CONTROL.items()
    },
    **dict.fromkeys(("jax.lax.scan", "haiku.scan"), _SCAN),
    "jax.lax.map": _Form(((0, "f"),), None, (_Given(1, "xs", True),), steps=(ELEMENT,)),
    "functools.reduce": _Form(
        ((0, "function"),), None, (_Given(2, "initial"), _Given(1, "iterable", True)), start=_Given(2, "initial")
    ),
    **dict.fromkeys(("jax.vjp", "jax.linearize"), _OF_ALL._replace(steps=(item(0),))),
    **dict.fromkeys(
        ("jax.eval_shape", "jax.debug.callback", "flax.nnx.eval_shape", "equinox.filter_eval_shape"), _OF_ALL
    ),
    **dict.fromkeys(("jax.pure_callback", "jax.experimental.io_callback"), _Form(((0, "callback"),), 2)),
}
CALL_BACK = frozenset(_FORMS)
# Functions of Python that call what they are given first with the arguments after it.
CALL_FIRST = frozenset(("asyncio.to_thread", "atexit.register", "operator.call"))
# Functions and methods that call what they are given: with the arguments after it, with those in a tuple and a mapping
# after it, and with elements of the arguments after it. More may be done with it.
CALL_IT = frozenset(
    (
        *(*CALL_FIRST, "weakref.finalize"),
        *("call_soon", "call_soon_threadsafe", "call_later", "call_at", "run_in_executor", "submit"),
        *("callback", "push_async_callback"),
    )
)
CALL_WITH_PARTS = frozenset(("Thread", "Process", "Timer", "apply", "apply_async"))
CALL_WITH_ELEMENTS = frozenset(("map", "map_async", "imap", "imap_unordered", "starmap", "starmap_async", "tree_map"))
_AT_FIRST = """
    apply apply_along_axis apply_over_axes associative_scan bicgstab call callback cg checkify checkpoint
    closure_convert custom_gradient custom_jvp custom_vjp custom_vmap debug_callback dropwhile eval_shape filter
    filterfalse fromfunction frompyfunc gmres grad hessian id_tap inject_hyperparams io_callback jacfwd jacobian jacrev
    jit jvp linear_transpose linearize make_jaxpr map map_with_path minimize named_call odeint pallas_call partial
    Partial path_aware_map pjit pmap pure_callback quad reduce reduce_associative remat scan sequential_vmap shard_map
    starmap stateless takewhile timeit to_thread tree_map tree_map_with_path tree_multimap tree_reduce value_and_grad
    value_and_grad_from_state vectorize vjp vmap xla_computation
"""
_AT_SECOND = """
    accumulate flatten flatten_with_path groupby leaves leaves_with_path structure Timer tree_flatten
    tree_flatten_with_path tree_leaves tree_leaves_with_path tree_map_params tree_structure
"""
_BY_KEYWORD = "bisect bisect_left bisect_right insort insort_left insort_right max merge min sorted Thread"
# The places of the arguments that functions of libraries may call, by their last names, as JAX, Flax, Haiku and Equinox
# have the same.
_CALLED_AT: Mapping[str, Sequence[int]] = {
    **dict.fromkeys(_AT_FIRST.split(), (0,)),
    **dict.fromkeys(_AT_SECOND.split(), (1,)),
    **dict.fromkeys((*_BY_KEYWORD.split(), "platform_dependent"), ()),
    **dict.fromkeys(("nlargest", "nsmallest", "piecewise"), (2,)),
    **dict.fromkeys(("custom_linear_solve", "custom_root"), (0, 2, 3)),
    **{name: [place for place, _ in form.functions] for name, form in _CONTROL.items()},
    # Older releases have other places.
    "cond": (1, 2, 4),
}
# Those of functions whose last names mean something else elsewhere.
_CALLED_AT_OF: Mapping[str, Sequence[int]] = {
    **dict.fromkeys(("jax.lax.reduce", "jax.lax.reduce_window"), (2,)),
    **dict.fromkeys(("re.sub", "re.subn", "signal.signal"), (1,)),
}
# Methods of libraries that call their first argument, or the second.
_METHODS = CALL_IT.union(CALL_WITH_ELEMENTS, ("add_done_callback", "apply_async", "push"))
_CALL_SECOND = frozenset(("call_at", "call_later", "run_in_executor"))
# The names of arguments that any function calls, and of those that the functions above call.
_ALWAYS_CALLED = frozenset(("callback", "fn", "fun", "func", "is_leaf", "value_fn"))
_CALLED_NAMES = """
    body_fun computation cond_fun f false_fun funclist function key matvec solve stmt tangent_solve target
    transpose_solve true_fun
"""
_CALLED = _ALWAYS_CALLED.union(_CALLED_NAMES.split())
_PLATFORMS = frozenset(("cpu", "cuda", "default", "rocm", "tpu"))
# The place from which on the arguments of a library's function are those of the function that it is given first.
OPERANDS: Mapping[str, int] = {
    **dict.fromkeys(CALL_FIRST, 1),
    **{name: form.operands for name, form in _FORMS.items() if form.operands is not None and not form.functions[0][0]},
}


def called_back(flow: ValueFlow, name: str, call: CallArguments) -> Iterator[tuple[Value, CallArguments]]:
    """The functions that a function of a library calls, each with what it is given the first time."""
    form = _FORMS[name]
    if form.operands is not None:
        given = CallArguments(call.positional[form.operands :])
    else:
        given = flow.call_of([*_given(form, call)])
    given = flow.same(given, call, item(0))
    functions = (call.at(place, word) for place, word in form.functions)
    yield from ((each.done(ELEMENT) if form.is_held else each, given) for each in functions if each is not None)


def may_be_called(name: str, call: CallArguments, argument: Value) -> bool:
    """Whether a library may call an argument.

    Args:
        name: The full name of what is called, or, of a method, its name alone.
        call: What it is given.
        argument: One of that.
    """
    last = name.rpartition(".")[2]
    if last != name:
        last = last.removeprefix("filter_")
        places = _CALLED_AT_OF.get(name, _CALLED_AT.get(last))
    else:
        places = ((1,) if name in _CALL_SECOND else (0,)) if name in _METHODS else None
    words = {word for word, each in call.keywords if each is argument}
    if places is None:
        return not words.isdisjoint(_ALWAYS_CALLED)
    if not words.isdisjoint(_PLATFORMS if last == "platform_dependent" else _CALLED):
        return True
    return (None in words and not call.positional) or any(
        each.value is argument and (each.is_starred or index in places) for index, each in enumerate(call.positional)
    )


def _given(form: _Form, call: CallArguments) -> Iterator[Value]:
    for each in form.given:
        found = call.at(each.place, each.name)
        if found is not None:
            yield found.done(ELEMENT) if each.by_element else found
        elif each == form.start and (rows := call.at(1)) is not None:
            # `reduce` starts with an element.
            yield rows.done(ELEMENT)


def of_called_back(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> Iterator[Value]:
    """The result of a library's function that calls its argument."""
    name = f"{value.head}"
    form = _FORMS[name]
    start = call.at(*form.start[:2]) if form.start is not None else None
    made = [function.done(Access(By.CALL, given)) for function, given in called_back(flow, name, call)]
    if form is _SCAN:
        match rest:
            case [Access(By.ITEM, Key(text=0)), *more]:
                yield from (each.done(*more) for each in (start, *(each.done(item(0)) for each in made)) if each)
            case [Access(By.ITEM, Key(text=1)) as rows, Access(By.ELEMENT | By.ITEM), *more]:
                yield from (each.done(rows, *more) for each in made)
            case _:
                pass
        return
    if start is not None:
        yield start.done(*rest)
    steps = [step.kind for step in form.steps]
    if len(rest) >= len(steps) and all(
        step == wanted or (wanted is ELEMENT and step.kind is By.ITEM)
        for step, wanted in zip(rest, form.steps, strict=False)
    ):
        # The first of several says what it gives.
        results = made[:1] if form.start is not None else made
        combine, elements = call.at(0), call.at(1)
        if name == "functools.reduce" and combine is not None and elements is not None:
            # It is called again with what it gave.
            again = flow.call_of([value._replace(path=value.path[:1]), elements.done(ELEMENT)])
            results = [combine.done(Access(By.CALL, flow.same(again, call, item(1))))]
            results += [elements.done(ELEMENT)] if start is None else []
        yield from (each.done(*rest[len(steps) :]) for each in results)
