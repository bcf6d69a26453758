"""Functions of JAX, Flax and optax that give what they are given are known to the tool, for each release.

All public ones are called with an object and with a function: what gives it, or something that calls it, is followed,
or named in `mmrewrite/values/array_libraries.py`. The tool takes all others to give something of their own.
"""

from __future__ import annotations

import contextlib
import importlib
import io
from types import ModuleType

import pytest

from mmrewrite.values.array_libraries import MAY_GIVE_GIVEN
from mmrewrite.values.library import is_followed

HOMES = (
    *("jax", "jax.tree", "jax.tree_util", "jax.lax", "jax.custom_batching", "jax.custom_derivatives"),
    *("jax.experimental.checkify", "flax.core", "flax.jax_utils", "flax.linen", "flax.linen.partitioning"),
    *("flax.linen.spmd", "flax.nnx", "flax.serialization", "flax.struct", "flax.training.common_utils"),
    *("flax.training.train_state", "flax.traverse_util", "optax", "optax.tree", "optax.tree_utils"),
)
# What these would change or wait for.
NOT_CALLED = ("clear", "debug", "device", "distributed", "exit", "profil", "save", "set_")
# They are told by the names that the first has.
SAME = {"jax.remat": "jax.checkpoint", "flax.linen.partitioning.unfreeze": "flax.core.unfreeze"}


class Thing: ...


def is_in(result: object, given: object, depth: int = 2) -> bool:
    if result is given:
        return True
    parts = result.values() if type(result) is dict else result if type(result) in (tuple, list) else ()
    return depth > 0 and any(is_in(part, given, depth - 1) for part in parts)


def gives_it(function: object) -> bool:
    """Whether a call gives an object or a function that it is given, or what calls that."""
    assert callable(function)
    calls: list[object] = []

    def given_function(*arguments: object, **keywords: object) -> object:
        calls.append(arguments)
        return arguments[0] if arguments else None

    for given in (Thing(), given_function):
        first: tuple[object, ...] = (1.0, "x", lambda x: x, given)
        for arguments in ((given,), (given, 1.0), *((each, given) for each in first), (1.0, 1.0, given)):
            with contextlib.suppress(BaseException), contextlib.redirect_stdout(io.StringIO()):
                result = function(*arguments)
                if is_in(result, given):
                    return True
                calls.clear()
                if given is given_function and callable(result) and not isinstance(result, type):
                    for more in ((1.0,), ()):
                        with contextlib.suppress(BaseException):
                            result(*more)
                    if calls:
                        return True
    return False


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("home", HOMES)
def test_functions_that_give_what_they_are_given_are_known(home: str) -> None:
    module = importlib.import_module(home)
    names = [name for name in vars(module) if not name.startswith("_") and not any(map(name.__contains__, NOT_CALLED))]
    functions = {name: getattr(module, name) for name in names}
    found = {
        f"{home}.{name}"
        for name, each in functions.items()
        if callable(each) and not isinstance(each, type | ModuleType) and gives_it(each)
    }
    unknown = {name for name in found if not is_followed(SAME.get(name, name))}
    assert unknown <= MAY_GIVE_GIVEN | {"flax.serialization.contextmanager"}
