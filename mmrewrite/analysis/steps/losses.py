"""The function that is differentiated: its definition, its random keys, and the state of Flax that it changes."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from mmrewrite.analysis.steps.gradients import Gradient, keywords_of
from mmrewrite.codemod.site import Site
from mmrewrite.project.facts import Facts
from mmrewrite.project.reach import reach_of
from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.calls import stars_of
from mmrewrite.source.functions import own_nodes
from mmrewrite.source.names import Scope, all_arguments
from mmrewrite.values.arguments import given
from mmrewrite.values.flow import values_of
from mmrewrite.values.value import By, Decorated, Value

_KEY_WORDS = re.compile(r"(^|_)(rngs?|keys?|prng|prngs)\d*($|_)|rng\d*$|[a-z]key\d*$")
_BATCH_NORMS = frozenset(("flax.linen.BatchNorm", "flax.nnx.BatchNorm"))
# They change how a function runs, not what it returns.
_TRANSPARENT = frozenset(("jax.jit", "jax.checkpoint", "jax.named_call"))
# What Haiku makes of a function, and the parameters that it puts before those of that.
_PARAMETERS_BEFORE = {"haiku.transform().apply": ("params", "rng"), "haiku.without_apply_rng().apply": ("params",)}
_SPLIT = "jax.random.split"
_SIZES = frozenset(("dtype", "ndim", "shape", "size"))
_KEY_MAKERS = frozenset(
    (
        *(_SPLIT, "haiku.next_rng_key"),
        *(f"jax.random.{name}" for name in ("key", "PRNGKey", "fold_in", "clone", "wrap_key_data")),
    )
)
_NEW_KEYS = frozenset(("jax.random.key()", "jax.random.PRNGKey()"))
# What these give comes from the key that they are given; with a number, they may give each row its own.
_OF_KEYS = frozenset((_SPLIT, "jax.random.clone"))
_NO_DRAWS = frozenset(
    ("PRNGKey", "clone", "fold_in", "key", "key_data", "key_impl", "random_seed", "split", "wrap_key_data")
)
# Keys that an object of a library gives, one after another.
_STREAMS = frozenset(("flax.linen.Module().make_rng()", "flax.nnx.Rngs()()", "haiku.PRNGSequence()[]"))
# What these give is what they are given, or a part of it.
_KEEP_KEYS = frozenset(
    (
        *("jax.device_put", "jax.lax.optimization_barrier", "jax.lax.select"),
        *("jax.lax.stop_gradient", "jax.lax.with_sharding_constraint"),
        *(f"jax.numpy.{name}" for name in ("array", "asarray", "concatenate", "reshape", "squeeze", "stack", "where")),
        *("flax.jax_utils.replicate", "flax.jax_utils.unreplicate"),
    )
)
# Methods that make an object, and its parameters.
_MAKING = frozenset(("__init__", "__new__", "__post_init__", "setup"))
_DEPTH = 4

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True, eq=False)
class Loss:
    """The definition of the function that is differentiated, and its module.

    `before` are parameters that a transformation such as `hk.transform` puts before its own, of which `num_bound` are
    given already: by a `partial`, or the object of a method. `given` are the arguments of the `partial` by name.
    """

    facts: Facts
    node: Definition
    before: tuple[str, ...] = ()
    num_bound: int = 0
    given: tuple[tuple[str, Value], ...] = ()

    @property
    def scope(self) -> Scope:
        """The scope of its body."""
        return self.facts.names.inner[self.node]

    @property
    def parameters(self) -> list[str]:
        """Names of its parameters, in order."""
        return [*self.before, *[argument.arg for argument in all_arguments(self.node.args)][self.num_bound :]]

    @property
    def num_positional(self) -> int:
        """The number of positional parameters."""
        return len(self.before) + len(self.node.args.posonlyargs) + len(self.node.args.args) - self.num_bound

    @property
    def by_keyword(self) -> frozenset[str]:
        """Names of the keyword-only parameters."""
        return frozenset(argument.arg for argument in self.node.args.kwonlyargs)

    def nodes(self) -> Iterator[ast.AST]:
        """The nodes of its body, without those of functions inside it."""
        yield from ast.walk(self.node.body) if isinstance(self.node, ast.Lambda) else own_nodes(self.node)


def find_function(site: Site, value: Value, *, in_any_call: bool = False, depth: int = _DEPTH) -> Loss | None:
    """The definition of the function that a value certainly is, through at most `depth` partials and transformations.

    With `in_any_call`, it may be given to any function of a library, of whose result nothing is known.
    """

    def end(value: Value) -> Value | None:
        kinds = [step.kind for step in value.path]
        if isinstance(value.head, str):
            is_known = in_any_call or value.head in _TRANSPARENT or value.bound is not None
            is_given = kinds in ([By.CALL], [By.CALL, By.BOUND]) and is_known
            return value if is_given or value.outside in _PARAMETERS_BEFORE else None
        if isinstance(value.head, Decorated):
            return value if not kinds else None
        is_function = isinstance(value.head, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        return value if is_function and kinds in ([], [By.BOUND]) else None

    found = values_of(site.project).must(value, end) if depth else None
    if found is None:
        return None
    node = found.head.definition if isinstance(found.head, Decorated) else found.head
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        return Loss(found.module.facts, node, num_bound=len(found.path))
    # What takes its parameters first is no function by itself.
    first = found.path[0].what.first() if found.path else None
    if first is None:
        return None
    rest = found.path[1:]
    # `hk.transform(f)` is a pair that is made of `f`.
    rest = () if found.head == "haiku.transform" else rest
    inner = find_function(site, first.done(*rest), in_any_call=in_any_call, depth=depth - 1)
    if inner is None:
        return None
    if found.outside in _PARAMETERS_BEFORE:
        return dataclasses.replace(inner, before=_PARAMETERS_BEFORE[found.outside])
    bound = found.bound
    if bound is None:
        return inner
    by_position = [given.value for given in bound.positional[1:]]
    given = (*zip(inner.parameters, by_position, strict=False), *keywords_of(bound), *inner.given)
    return dataclasses.replace(inner, num_bound=inner.num_bound + len(by_position), given=given)


def possible_functions(site: Site, value: Value) -> list[Loss]:
    """The definitions of the functions that a value may be by itself."""

    def function(value: Value) -> ast.AST | None:
        is_function = isinstance(value.head, ast.FunctionDef | ast.Lambda) and not value.path
        return value.head if is_function and isinstance(value.head, ast.AST) else None

    found = values_of(site.project).may(value, function).answers
    return [Loss(each.module.facts, node) for node, each in found.items() if isinstance(node, Definition)]


def keeps_values(facts: Facts, decorator: ast.expr, scope: Scope) -> bool:
    """Whether a decorator is known not to change what a function returns."""
    names = [decorator, *([decorator.func, *decorator.args[:1]] if isinstance(decorator, ast.Call) else [])]
    return any(facts.names.resolve(name, scope) in _TRANSPARENT for name in names)


def looks_like_key(name: str) -> bool:
    """Whether a name is like those of random keys: `rng`, `dropout_key`, `keys`."""
    return _KEY_WORDS.search(name.lower()) is not None


def names_one_key(name: str) -> bool:
    """Whether a name is like that of one random key; several keys may be one for each example.

    `rngs` is a dictionary of streams in Flax, or an `nnx.Rngs`, and has no rows.
    """
    plain = name.lower().rstrip("0123456789_")
    return looks_like_key(name) and (plain.endswith("rngs") or not plain.endswith("s"))


def made_as_keys(site: Site, facts: Facts, node: ast.expr | Value) -> bool | None:
    """Whether a value may be one random key, by how it is made; False if only several, None if none is seen."""

    def keys(value: Value) -> bool | None:
        kinds = [step.kind for step in value.path]
        is_made = value.head in _KEY_MAKERS and kinds[:1] == [By.CALL] and By.ATTRIBUTE not in kinds
        if value.outside in _STREAMS or (value.head == "flax.nnx.Rngs" and kinds == [By.CALL, By.ATTRIBUTE, By.CALL]):
            return True
        return (value.head != _SPLIT or len(kinds) > 1) if is_made else None

    def kept(value: Value) -> list[Value]:
        is_kept = value.head in _KEEP_KEYS and value.path[:1] and value.path[0].kind is By.CALL
        return [each.done(*value.path[1:]) for each in given(value.path[0].what)] if is_kept else []

    flow = values_of(site.project)
    value = node if isinstance(node, Value) else flow.value_in(facts, node)
    found = flow.may(value, keys, also=kept).answers
    return any(found) if found else None


def keys_closed_over(site: Site, loss: Loss) -> list[str]:
    """Closed-over values of the loss that are named like random keys, or made as one."""
    return sorted(
        {
            node.id
            for node, owner in _names_around(loss)
            if owner.kind == "function" and (looks_like_key(node.id) or made_as_keys(site, loss.facts, node))
        }
    )


def keys_of_the_module(site: Site, loss: Loss) -> list[str]:
    """Random keys that the loss uses and its module has at its top level."""
    names = ((node, owner) for node, owner in _names_around(loss) if owner.kind == "module")
    return sorted({node.id for node, _ in names if made_as_keys(site, loss.facts, node) is not None})


def draws_without_arguments(
    site: Site, gradient: Gradient, loss: Loss, cut: Collection[object]
) -> Iterator[tuple[Facts, ast.expr]]:
    """The random keys that a loss, or what it calls, draws with and that come from no argument of it."""
    flow = values_of(site.project)
    around = {*flow.uses_of(loss.facts).above(loss.node)}
    reached = {
        part: flow.uses_of(each.facts)
        for each in reach_of(site.project).from_node(loss.facts, loss.node)
        if "random" in each.facts.source.text and each.node not in around
        for part in (each.node.body if isinstance(each.node, ast.ClassDef) else [each.node])
    }
    # Those that no call gives have their defaults.
    given_ones = {
        name
        for index, name in enumerate(loss.parameters)
        if not gradient.calls or any(_gives(call, index, name) for call in gradient.calls)
    }

    def source(value: Value) -> bool | None:
        head, module = value.head, value.module
        if isinstance(head, ast.arg):
            function = module.parents[module.parents[head]]
            if function is loss.node:
                is_default = head.arg in loss.parameters and head.arg not in given_ones
                return None if is_default else True
            # What another function is given comes from its calls.
            return False if function in around else None
        if isinstance(head, ast.Name) and head.id in cut:
            return True
        return False if value.outside in _NEW_KEYS else None

    def parts(value: Value) -> list[Value]:
        first = value.path[0].what.first() if value.head in _OF_KEYS and value.path[:1] else None
        return [first] if first is not None else []

    for node, module in reached.items():
        for call in ast.walk(node) if _is_run(module, node) else ():
            if not isinstance(call, ast.Call):
                continue
            home, _, own = (module.full_name(call.func) or "").rpartition(".")
            key = next(iter((*call.args, *(word.value for word in call.keywords if word.arg == "key"))), None)
            if home == "jax.random" and own not in _NO_DRAWS and key is not None:
                found = flow.may(flow.at(module, key), source, also=parts)
                is_seen = all(each.head in _OF_KEYS for each in found.others) and all(
                    each.is_open for each in found.unknown
                )
                if is_seen and set(found.answers) == {False}:
                    yield module.facts, key


def _is_run(module: ModuleUses, definition: ast.AST) -> bool:
    """Whether a loss that reaches a definition may run it: a method only if another one of its class calls it."""
    holder = module.parents.get(definition)
    if not isinstance(holder, ast.ClassDef) or not isinstance(definition, Definition):
        return isinstance(definition, Definition)
    methods = [each for each in holder.body if isinstance(each, Definition) and each.name not in _MAKING]
    nodes = (node for each in methods for node in ast.walk(each))
    called = {node.func.attr for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)}
    return definition in methods and (definition.name in called or definition.name == "__call__")


def _names_around(loss: Loss) -> Iterator[tuple[ast.Name, Scope]]:
    """The names that a loss reads of the code around it, and what binds each."""
    for node in loss.nodes():
        owner = loss.scope.owner(node.id) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) else None
        if isinstance(node, ast.Name) and owner is not None and owner is not loss.scope:
            yield node, owner


def is_size(site: Site, facts: Facts, node: ast.expr) -> bool:
    """Whether an expression is certainly a shape or a type, or a part of one: `x.shape[0]`, `len(x)`, `x.ndim`."""

    def size(value: Value) -> bool | None:
        is_length = value.outside == "builtins.len()"
        return is_length or any(step.kind is By.ATTRIBUTE and step.what in _SIZES for step in value.path) or None

    flow = values_of(site.project)
    return flow.must(flow.value_in(facts, node), size) is True


def has_a_key_for_each_row(site: Site, loss: Loss, name: str) -> bool:
    """Whether a closed-over value is a key split into as many as there are rows of something."""
    binding = loss.facts.names.binding(name, loss.scope)
    value = binding.value if binding is not None else None
    if not isinstance(value, ast.Call) or loss.facts.names.resolve(value.func, loss.scope) != "jax.random.split":
        return False
    counts = [*value.args[1:], *(keyword.value for keyword in value.keywords if keyword.arg == "num")]
    return any(is_size(site, loss.facts, count) for count in counts)


def changes_collections(nodes: Iterable[ast.AST]) -> ast.Call | None:
    """The first call that changes state of Flax: `model.apply(..., mutable=["batch_stats"])`."""
    for node in nodes:
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                if keyword.arg == "mutable" and _is_state(keyword.value, node):
                    return node
    return None


def _is_state(mutable: ast.expr, call: ast.Call) -> bool:
    """Whether `mutable=` of a call may name a collection that the call reads and changes.

    `self.sow` fills "intermediates" anew in each call; so does every collection that a call is visibly not given.
    """
    if isinstance(mutable, ast.Constant) and not mutable.value:
        return False
    items = mutable.elts if isinstance(mutable, ast.List | ast.Tuple | ast.Set) else [mutable]
    names = {item.value for item in items if isinstance(item, ast.Constant) and isinstance(item.value, str)}
    if len(names) != len(items):
        return True
    variables = call.args[0] if call.args else None
    keys = variables.keys if isinstance(variables, ast.Dict) else [None]
    given = {key.value for key in keys if isinstance(key, ast.Constant)}
    may_be_given = names if len(given) < len(keys) else names & given
    # BatchNorm starts running averages of its own where it is given none.
    return bool((may_be_given - {"intermediates"}) | (names & {"batch_stats"}))


def batch_norms(facts: Facts, tree: ast.AST, scope: Scope) -> list[ast.expr]:
    """Uses of Flax's batch normalisation that compute statistics of the batch.

    One of linen with `use_running_average=True`, in its call or in a `partial`, does not; but if another value of that
    argument occurs anywhere, all count. One of nnx can be switched at run time, by `model.train()`, so it always does.
    """
    uses: list[ast.expr] = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Name | ast.Attribute) and facts.names.resolve(node, scope) in _BATCH_NORMS
    ]
    frozen: set[ast.expr] = set()
    for node in ast.walk(tree) if uses else ():
        values = [each.value for each in getattr(node, "keywords", ()) if each.arg == "use_running_average"]
        if isinstance(node, ast.Call) and values:
            if not (isinstance(values[0], ast.Constant) and values[0].value is True):
                return uses
            frozen.update((node.func, *node.args[:1]))
    return [use for use in uses if use not in frozen or facts.names.resolve(use, scope) == "flax.nnx.BatchNorm"]


_REPEATED = "and would be the same in every microbatch"
_ELSEWHERE = "and write `rng=` with its position, or `rng=None` to use it as it is"


@dataclass(frozen=True)
class UnnamedKey:
    """A random key.

    Attributes:
        reason: What it is, and what to do first if no hint can name it.
        place: The text that `rng=` may have for it, None if no hint can name it yet.
        closed: Its name, where the loss closes over it.
    """

    reason: str
    place: str | None
    closed: str | None = None

    def out_of_reach(self, why: str) -> UnnamedKey:
        """The same key where the loss cannot be given a parameter for it."""
        return UnnamedKey(f"{self.reason}; {why}, so pass it to the loss by position {_ELSEWHERE}", None)


def unnamed_keys(site: Site, gradient: Gradient, loss: Loss | None, cut: Collection[object]) -> list[UnnamedKey]:
    """The random keys among the arguments of a gradient's calls; else those that the loss takes or closes over.

    Args:
        site: The site of the hint.
        gradient: The gradient function.
        loss: What it differentiates, if that can be seen.
        cut: Positions of the arguments that are cut, and names of closed-over values that are.
    """
    found = {key.place: key for call in gradient.calls for key in _in_call(site, call, loss, cut)}
    if loss is not None and not found:
        found = {key.place: key for key in _in_loss(site, gradient, loss, cut)}
        found = found or {key.place: key for key in _in_draws(site, gradient, loss, cut)}
    return [*found.values(), *_in_partials(site, gradient, loss)]


def _in_partials(site: Site, gradient: Gradient, loss: Loss | None) -> Iterator[UnnamedKey]:
    """The random keys that a `partial` gives the loss or the gradient function."""
    given = (*gradient.given, *(loss.given if loss is not None else ()))
    for name, value in dict(given).items():
        is_written = isinstance(value.head, ast.Constant)
        if not is_written and (looks_like_key(name) or made_as_keys(site, site.facts, value)):
            what = f"a `partial` gives the loss `{name}`, which looks like a random key, {_REPEATED}"
            yield UnnamedKey(f"{what}; pass it to the gradient by position {_ELSEWHERE}", None)


def _in_call(site: Site, call: ast.Call, loss: Loss | None, cut: Collection[object]) -> Iterator[UnnamedKey]:
    for index, argument in enumerate(call.args):
        if isinstance(argument, ast.Starred):
            site.refuse("star-args may hide a random key; write `rng=` with its position, or `rng=None`", call)
        if index not in cut and _is_key(site, argument):
            yield UnnamedKey(f"`{site.text(argument)}` looks like a random key, {_REPEATED}", str(index))
    for keyword in call.keywords:
        name = keyword.arg or "**" + site.text(keyword.value)
        if keyword.arg is not None and not looks_like_key(name) and not _is_key(site, keyword.value):
            continue
        what = f"`{name}` looks like a random key, {_REPEATED}"
        if loss is not None and name in loss.parameters and name not in loss.by_keyword:
            yield UnnamedKey(what, f'"{name}"')
        else:
            star = " (remove the `*` before it)" if loss is not None and name in loss.by_keyword else ""
            yield UnnamedKey(f"{what}; pass it by position{star} {_ELSEWHERE}", None)


def _in_loss(site: Site, gradient: Gradient, loss: Loss, cut: Collection[object]) -> Iterator[UnnamedKey]:
    for index, name in enumerate(loss.parameters):
        if gradient.calls and not any(_gives(call, index, name) for call in gradient.calls):
            # It has its default, such as None.
            continue
        if (index not in cut or name in loss.by_keyword) and looks_like_key(name):
            yield UnnamedKey(f"the loss takes `{name}`, which looks like a random key, {_REPEATED}", str(index))
    for name in keys_closed_over(site, loss):
        if name in cut:
            continue
        what = f"the loss closes over `{name}`, which looks like a random key, {_REPEATED}"
        yield UnnamedKey(what, f'"{name}"', name)
    for name in keys_of_the_module(site, loss)[:1]:
        what = f"the loss uses the random key `{name}` of its module, which would be the same in every microbatch"
        yield UnnamedKey(f"{what}; pass it to the loss by position {_ELSEWHERE}", None)


def _in_draws(site: Site, gradient: Gradient, loss: Loss, cut: Collection[object]) -> Iterator[UnnamedKey]:
    for facts, key in draws_without_arguments(site, gradient, loss, cut):
        what = f"the loss draws with `{ast.unparse(key)}` at {site.place(facts.path, key.lineno)}"
        told = "which comes from none of its arguments and would be the same in every microbatch"
        yield UnnamedKey(f"{what}, {told}; pass the key to the loss by position {_ELSEWHERE}", None)
        return


def _gives(call: ast.Call, index: int, name: str) -> bool:
    """Whether a call may give a parameter of the loss a value."""
    return bool(stars_of(call)) or index < len(call.args) or any(keyword.arg == name for keyword in call.keywords)


def _is_key(site: Site, node: ast.expr) -> bool:
    """Whether an argument is named like a random key, or made as one."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) if looks_like_key(name):
            return True
        case ast.Subscript(value=ast.Name() | ast.Attribute() as value) if _is_key(site, value):
            return True
        case ast.Dict(values=values):
            return any(_is_key(site, value) for value in values)
    return made_as_keys(site, site.facts, node) is not None
