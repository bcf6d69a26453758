"""What the drivers in this folder share. It runs in the old Python as well: nothing here may need more than 3.10."""

from __future__ import annotations

import importlib
import sys
import traceback
import unittest
from collections.abc import Callable, Iterable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, ClassVar
from unittest import mock

import jax
import numpy as np

ARRAY = type(jax.numpy.zeros(()))


class StandIn(ModuleType):
    """A module for a package that is not needed: its attributes can be called, inherited from and asked for more."""

    __path__: ClassVar[list[str]] = []
    __version__ = "0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = type(name, (), {}) if name[:1].isupper() else mock.MagicMock(name=name)
        setattr(self, name, value)
        return value


class _Below:
    """Finds whatever is imported from below a stand-in."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """A specification of another stand-in."""
        is_below = isinstance(sys.modules.get(name.rpartition(".")[0]), StandIn)
        return ModuleSpec(name, self, is_package=True) if is_below else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The stand-in."""
        return StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing."""


sys.meta_path.append(_Below())  # type: ignore[arg-type]


def stand_in(name: str, **attributes: Any) -> ModuleType:
    """Put a module `name` where `import` looks first, with the attributes given; packages around it too, where missing.

    For data, tokenizers, logging and the network alone: what a driver stands in for does not run.
    """
    parent, _, last = name.rpartition(".")
    if parent:
        try:
            importlib.import_module(parent)
        except ImportError:
            stand_in(parent)
    module = sys.modules[name] = StandIn(name)
    module.__spec__ = ModuleSpec(name, None)
    for attribute, value in attributes.items():
        setattr(module, attribute, value)
    if parent:
        setattr(sys.modules[parent], last, module)
    return module


def lasting(tree: Any) -> dict[str, jax.Array]:
    """Every array of a tree by its path, copied where it lies: what is donated afterwards would be gone at the end."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(copied(tree))
    return {jax.tree_util.keystr(path): leaf for path, leaf in leaves}


def deleted(tree: Any) -> list[bool]:
    """For every array of a tree, whether it is gone because it was donated."""
    return [leaf.is_deleted() for leaf in jax.tree_util.tree_leaves(tree)]


def arrays_of_tests(module: ModuleType, *names: str) -> dict[str, dict[str, Any]]:
    """Run test classes of a module; for each test its outcome, and the arrays in what its functions bind and return.

    `Class.test_of` runs the tests of a class whose names start like that, `Class` all. Of several calls of one function
    the last counts. What made a test fail goes to standard error.
    """
    found = {}
    for name, _, start in (name.partition(".") for name in names):
        for test in unittest.defaultTestLoader.loadTestsFromTestCase(getattr(module, name)):
            if not test.id().rpartition(".")[2].startswith(start):
                continue
            arrays: dict[str, Any] = {}

            def note(frame: Any, event: str, result: Any, arrays: Any = arrays) -> None:
                code = frame.f_code
                # Comprehensions are functions up to Python 3.11 only.
                if event != "return" or code.co_filename != module.__file__ or code.co_name.startswith("<"):
                    return
                for local, value in (*frame.f_locals.items(), ("return", result)):
                    leaves = [] if isinstance(value, unittest.TestCase) else jax.tree_util.tree_leaves(value)
                    if leaves and all(type(leaf) is ARRAY for leaf in leaves):
                        arrays[f"{code.co_name}.{local}"] = leaves

            outcome = unittest.TestResult()
            np.random.seed(0)
            sys.setprofile(note)
            try:
                test.run(outcome)
            finally:
                sys.setprofile(None)
            for _, text in (*outcome.errors, *outcome.failures):
                print(test.id(), text, sep="\n", file=sys.stderr)
            arrays["outcome"] = "skipped" if outcome.skipped else "passed" if outcome.wasSuccessful() else "failed"
            found[f"{name}.{test.id().rpartition('.')[2]}"] = arrays
    return found


def drawn_like(params: Any) -> Any:
    """Parameters with numbers of our own, since libraries draw others from version to version. Scales are about one."""

    def draw(path: Any, leaf: Any) -> Any:
        values = random.normal(size=np.shape(leaf)) / 8
        return (values + ("scale" in jax.tree_util.keystr(path))).astype(leaf.dtype)

    random = np.random.RandomState(0)
    return jax.tree_util.tree_map_with_path(draw, params)


def copied(tree: Any) -> Any:
    """Copies of a tree's arrays, placed alike: for what the next call is given to keep."""
    return jax.tree_util.tree_map(
        lambda x: jax.device_put(np.asarray(x), x.sharding) if isinstance(x, jax.Array) else x, tree
    )


def locals_of(function: Callable[..., Any], *args: Any) -> dict[str, Any]:
    """Call a function that returns nothing of interest; its local variables at its end, and its result as `return`."""
    found: dict[str, Any] = {}

    def note(frame: Any, event: str, result: Any) -> None:
        if event == "return" and frame.f_code is function.__code__:
            found.update(frame.f_locals, **{"return": result})

    sys.setprofile(note)
    try:
        function(*args)
    finally:
        sys.setprofile(None)
    return found


def arrays_of(functions: Iterable[Callable[[], Any]]) -> dict[str, dict[str, Any]]:
    """Call functions that return nothing of interest; what arrays each had in its local variables at its end.

    A function that raises has the name of the exception instead, and its traceback goes to standard error.
    """
    found = {}
    for function in functions:
        np.random.seed(0)
        try:
            values = locals_of(function)
        except Exception as error:
            traceback.print_exc()
            found[function.__name__] = {"error": type(error).__name__}
        else:
            found[function.__name__] = {name: value for name, value in values.items() if isinstance(value, jax.Array)}
    return found
