"""What runners of tests pass for parameters: fixtures and `parametrize` of pytest, and `parameters` of absl."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from mmrewrite.project.uses import ModuleUses
from mmrewrite.values.functions import results_of
from mmrewrite.values.value import ELEMENT, Access, By, Function, Path, Value, item

if TYPE_CHECKING:
    from mmrewrite.values.flow import ValueFlow

_FIXTURE = ("pytest.fixture", "pytest_asyncio.fixture")
_ABSL = "absl.testing.parameterized."
_LISTED = (f"{_ABSL}parameters", f"{_ABSL}named_parameters")


def of_tests(
    flow: ValueFlow, module: ModuleUses, function: Function, parameter: ast.arg, path: Path
) -> Iterator[Value]:
    """What a runner passes for a parameter of a test or a fixture: nothing for one of another function."""
    names = [flow.full_name(module, getattr(each, "func", each)) or "" for each in function.decorator_list]
    for name, decorator in zip(names, function.decorator_list, strict=True):
        if isinstance(decorator, ast.Call):
            yield from _listed(module, name, decorator, function, parameter, path)
    if function.name.startswith("test") or not names or not set(names).isdisjoint(_FIXTURE):
        found = _fixtures(flow).get(parameter.arg, ())
        # One beside a test hides those of `conftest.py`.
        own = [(home, each) for home, each in found if home is module and each is not function]
        for home, fixture in own or found:
            inner = (ELEMENT,) if results_of(fixture).is_generator else ()
            yield Value(home, fixture, (Access(By.CALL, flow.no_arguments), *inner, *path))


def _fixtures(flow: ValueFlow) -> Mapping[str, Sequence[tuple[ModuleUses, Function]]]:
    """The fixtures of a project by the names of the parameters that get them."""

    def find() -> Mapping[str, Sequence[tuple[ModuleUses, Function]]]:
        found: dict[str, list[tuple[ModuleUses, Function]]] = {}
        for module in flow.modules:
            for use in module.uses(_FIXTURE):
                made = module.parents[use.node]
                call = made if isinstance(made, ast.Call) else None
                function = module.parents[made] if call is not None else made
                if isinstance(function, Function):
                    words = [each.value for each in call.keywords if each.arg == "name"] if call is not None else []
                    names = [str(each.value) for each in words if isinstance(each, ast.Constant)]
                    found.setdefault(names[0] if names else function.name, []).append((module, function))
        return found

    return flow.project.once("fixtures", find)


def _listed(
    module: ModuleUses, name: str, decorator: ast.Call, function: Function, parameter: ast.arg, path: Path
) -> Iterator[Value]:
    """What a decorator lists for a parameter."""
    match name, decorator.args:
        case "pytest.mark.parametrize", [named, values, *_]:
            texts = [each.value for each in getattr(named, "elts", [named]) if isinstance(each, ast.Constant)]
            words = [word.strip() for text in texts for word in str(text).split(",")]
            if parameter.arg in words:
                steps = (item(words.index(parameter.arg)),) if len(words) > 1 else ()
                yield Value(module, values, (ELEMENT, *steps, *path))
        case _, values if name in _LISTED and parameter in function.args.args:
            # The object has the first place; a name stands before the others.
            place = function.args.args.index(parameter) - 1 + name.endswith("named_parameters")
            for each in values:
                if isinstance(each, ast.Tuple):
                    yield Value(module, each, (item(place), *path))
                elif isinstance(each, ast.Dict) or module.full_name(getattr(each, "func", each)) == "builtins.dict":
                    yield Value(module, each, (item(parameter.arg), *path))
                else:
                    yield Value(module, each, path)
        case _:
            pass
    for keyword in decorator.keywords:
        if name == f"{_ABSL}product" and keyword.arg == parameter.arg:
            yield Value(module, keyword.value, (ELEMENT, *path))
