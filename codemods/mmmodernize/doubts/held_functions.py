"""Keywords that are gone, in calls of values that may be the function which lost them. They are reported, not edited.

    clip = functools.partial(jnp.clip, a_min=0) if on_device else np.clip
    clip(x, a_max=1)
    getattr(jnp, "clip")(x, a_max=1)

No chain of names leads from the function to such a call, or it leads to others as well. What is called is followed
backwards, as modules are that a program passes on. Only calls are asked with a keyword that a function lost which the
program holds as a value.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set

from mmmodernize.calls.call_forms import calls_of, form_of
from mmmodernize.doubts.looked_up_names import adds_names, asked_for, homes_asked, words_of
from mmmodernize.modules.held_modules import HeldModules
from mmmodernize.modules.passed_modules import PassedModules, module_by_name
from mmmodernize.modules.project_names import OwnMembers
from mmmodernize.names.name_index import prefixes
from mmmodernize.names.old_keywords import lost_keywords
from mmmodernize.sites.decision import left_at
from mmmodernize.sites.site import ModernizeContext
from mmmodernize.sites.version_guards import guard_of
from mmrewrite.project.uses import ModuleUses
from mmrewrite.results import LeftAlone
from mmrewrite.values.callbacks import OPERANDS
from mmrewrite.values.value import Value

_Function = ast.FunctionDef | ast.AsyncFunctionDef
# Where this is held, a codemod writes a function of the runtime that has all its keywords.
_KEPT = "jax.experimental.pjit.pjit"


def keywords_of_held(module: ModuleUses, context: ModernizeContext) -> Iterator[LeftAlone]:
    """Keywords in calls of values that may be a function which has them no more."""
    keywords = context.analysis(_HeldKeywords).keywords
    certain: Set[ast.keyword] | None = None
    for call in module.nodes_of(ast.Call) if keywords else ():
        given = [each for each in call.keywords if each.arg in keywords]
        if given and certain is None:
            certain = _certain(module)
        asked = [each for each in given if each not in (certain or ()) and guard_of(module, each) is None]
        for value in _called(module, call, context) if asked else ():
            yield from _told(module, context, asked, value)


def find_held_keywords(context: ModernizeContext) -> None:
    """Find the keywords to ask for, which every process would find for itself otherwise."""
    context.analysis(_HeldKeywords)


def _told(
    module: ModuleUses, context: ModernizeContext, asked: Iterable[ast.keyword], value: ast.expr
) -> Iterator[LeftAlone]:
    lost = lost_keywords()
    # Members that the project has itself are read of many values.
    is_own = isinstance(value, ast.Attribute) and value.attr in context.analysis(OwnMembers).names
    found = context.analysis(HeldFunctionsInView if is_own else HeldFunctions).of(module, value)
    for keyword in asked:
        name = min((each for each in found if keyword.arg in lost[each]), default=None)
        if name is not None and keyword.arg is not None:
            reason = (
                f"`{ast.unparse(value)}` may be `{name}`, by {found[name]}; `{keyword.arg}=` of that "
                f"{lost[name][keyword.arg]}"
            )
            yield left_at(module, keyword, reason, text=f"{keyword.arg}=")


def _certain(module: ModuleUses) -> Set[ast.keyword]:
    """The keywords in calls that names lead to: codemods see these."""
    return {
        keyword
        for use in module.uses(lost_keywords())
        for found in calls_of(module, use.node)
        for keyword in found.call.keywords
    }


# What is called


def _called(module: ModuleUses, call: ast.Call, context: ModernizeContext) -> Iterator[ast.expr]:
    """What may be called with the keywords of a call."""
    function = module.full_name(call.func)
    if function == "operator.methodcaller":
        yield call
    elif not (form := form_of(module, call)).is_called:
        yield form.function
    elif function is None or context.project.holds(function, module.facts):
        found = context.flow.binding_at(module, call.func)
        definition = found[1].node if found is not None and found[1].kind in ("class", "function") else None
        if definition is None:
            yield call.func
        if definition is None or _takes_any(definition):
            # It may call what it is given with them.
            yield from (each for each in call.args if isinstance(each, ast.Attribute | ast.Call | ast.Name))
    elif function in OPERANDS:
        yield from call.args[:1]


def _takes_any(definition: ast.AST) -> bool:
    """Whether a function of the project takes keywords that it does not name."""
    return isinstance(definition, _Function) and definition.args.kwarg is not None


# Which functions it may be


class HeldFunctions(HeldModules):
    """Follows values backwards to functions that lost keywords."""

    def __init__(self, context: ModernizeContext) -> None:
        super().__init__(context)
        self._by_text = context.analysis(_TextLookups).of
        self._places = context.analysis(PassedModules).places

    def _asked_for(self, passed: PassedModules) -> Set[str]:
        return held_functions()

    def _also(self, value: Value) -> Iterator[Value]:
        """Besides, what lookups by text may give, and names that the program adds to a module."""
        yield from super()._also(value)
        head, module = value.head, value.module
        if isinstance(head, ast.Call | ast.Subscript):
            yield from (self._flow.outside(module, name, value.path) for name in self._by_text(module).get(head, ()))
        elif isinstance(head, ast.Name) and head.id in _by_last_part() and adds_names(module):
            homes = self._places if module.scope_of(head).owner(head.id) is None else ()
            names = [each for each in _by_last_part()[head.id] if each.rpartition(".")[0] in homes]
            yield from (self._flow.outside(module, name, value.path) for name in names[:1])


class HeldFunctionsInView(HeldFunctions):
    """The functions a value may be, without what calls may give that are not in view."""

    may_give_what_is_given = False


class _TextLookups:
    """The lookups of functions by text, which are looked for once in each module."""

    def __init__(self, context: ModernizeContext) -> None:
        self._places = context.analysis(PassedModules).places
        self._known: dict[ModuleUses, Mapping[ast.AST, Sequence[str]]] = {}

    def of(self, module: ModuleUses) -> Mapping[ast.AST, Sequence[str]]:
        """The lookups of a module, each with the functions that it may give."""
        if module not in self._known:
            self._known[module] = _by_text(module, self._places)
        return self._known[module]


def _by_text(module: ModuleUses, places: Collection[str]) -> Mapping[ast.AST, Sequence[str]]:
    """The lookups of functions by text, each with what it may look up.

    What is not seen to be a module is any of `places`. A text that is not written may be any string of the module, in
    what is seen to be one.
    """
    found: dict[ast.AST, Sequence[str]] = {}
    words: dict[str, None] = {}
    for node in module.strings:
        text, holder = str(node.value), module.parents[node]
        words |= dict.fromkeys(word for word in words_of(node) if word in _by_last_part())
        if text.replace(":", ".").rpartition(".")[2] in _by_last_part() and isinstance(
            holder, ast.Call | ast.Subscript
        ):
            homes = [*homes_asked(module, node, places)]
            if not homes and isinstance(holder, ast.Call) and _hands_getattr_on(module):
                # As in `partial(getattr, jnp)("clip")`.
                homes = [*places]
            names = {f"{home}.{text}" for home in homes} | {module_by_name(module, holder)}
            found[holder] = sorted(held_functions() & names)
    for lookup in module.nodes_of(ast.Call, ast.Subscript) if words else ():
        for asked in asked_for(module, lookup) if lookup not in found else ():
            homes = [*homes_asked(module, asked, ())]
            found[lookup] = sorted(held_functions() & {f"{home}.{word}" for home in homes for word in words})
    return {node: names for node, names in found.items() if names}


def _hands_getattr_on(module: ModuleUses) -> bool:
    """Whether a module passes `getattr` on as a value."""
    heads = (head for head in module.heads.get("getattr", ()) if module.call_at(head) is None)
    return any(isinstance(module.parents[head], ast.Call) for head in heads)


class _HeldKeywords:
    """The keywords that functions lost which a project holds as values, or reads of values.

    Attributes:
        keywords: The keywords.
    """

    def __init__(self, context: ModernizeContext) -> None:
        modules, texts = context.analysis(PassedModules).loose, context.analysis(_TextLookups)
        loose = {own for own, names in _by_last_part().items() if any(_is_in_any(each, modules) for each in names)}
        held = {name for module in context.modules.values() for name in _held_in(module, texts, loose)}
        self.keywords: Collection[str] = {keyword for name in held for keyword in lost_keywords()[name]}


def _held_in(module: ModuleUses, texts: _TextLookups, loose: Collection[str]) -> Iterator[str]:
    """The functions that a module may hold: it names one and does not call it there, or has its own name elsewhere.

    `loose` are the own names of functions in modules that the project passes on.
    """
    names = module.facts.names
    for use in module.uses(held_functions()):
        if module.call_at(use.node) is None:
            yield use.name
    for item in module.imported:
        if (
            item.name in held_functions()
            and names.resolve_dotted(item.local, names.scopes[item.statement]) != item.name
        ):
            yield item.name
    for found in texts.of(module).values():
        yield from found
    read = {
        own
        for own in module.attributes.keys() & loose
        if any(module.full_name(node) is None for node in module.attributes[own])
    }
    if names.stars or (loose and adds_names(module)):
        read |= module.heads.keys() & _by_last_part().keys()
    yield from (name for own in read for name in _by_last_part()[own])


def _is_in_any(name: str, modules: Collection[str]) -> bool:
    return any(each in modules for each in prefixes(name.rpartition(".")[0]))


@functools.cache
def held_functions() -> frozenset[str]:
    """Functions and classes that lost keywords, but for methods, which are read of objects."""
    functions = (name for name in lost_keywords() if not name.rpartition(".")[0].rpartition(".")[2][:1].isupper())
    return frozenset(functions) - {_KEPT}


@functools.cache
def _by_last_part() -> Mapping[str, Sequence[str]]:
    found: dict[str, list[str]] = {}
    for name in sorted(held_functions()):
        found.setdefault(name.rpartition(".")[2], []).append(name)
    return found
