"""Which arguments of a gradient function are the batch and the random keys, and how they become positional."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from mmrewrite.analysis.steps.closures import (
    Closed,
    RemadeLoss,
    cannot_be_given,
    closed_over,
    is_used_elsewhere,
    remade_loss,
)
from mmrewrite.analysis.steps.gradients import Gradient
from mmrewrite.analysis.steps.losses import (
    Loss,
    is_size,
    looks_like_key,
    made_as_keys,
    names_one_key,
    possible_functions,
)
from mmrewrite.analysis.steps.step_data import StepData, are_of_one_batch
from mmrewrite.codemod.site import Site
from mmrewrite.directives.arguments import whole_number
from mmrewrite.directives.collect import Argument
from mmrewrite.directives.vocabulary import nearest
from mmrewrite.source.calls import stars_of

_HARMLESS = ast.Name | ast.Attribute | ast.Subscript | ast.Constant


@dataclass(eq=False)
class Batch:
    """The arguments `argnum` and `rng` of `mm.microbatch` as source text, and the changes to the calls for them.

    `appended` are closed-over values that become the last parameters of the loss; `moved` are arguments by keyword that
    become positional. With `has_defaults` the new parameters get the closed-over values as defaults, for other callers.
    `remade` is the source of a loss with the new parameters, where a factory makes the loss.
    If several could be the batch, `question` says so, and `argnum` are all of them, as a hint would name them.
    """

    argnum: str = ""
    question: str | None = None
    has_defaults: bool = False
    rng: str | None = None
    appended: list[str] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    remade: str | None = None


def choose_batch(site: Site, gradient: Gradient, loss: Loss | None) -> Batch:
    """Read `argnum=` and `rng=` of the hint; without `argnum=`, find the only argument that can be the batch."""
    return _Chooser(site, gradient, loss).choose()


class _Chooser:
    def __init__(self, site: Site, gradient: Gradient, loss: Loss | None) -> None:
        self.site, self.gradient, self.loss = site, gradient, loss
        self.batch = Batch()
        self.parameters = loss.parameters if loss is not None else []
        self.closed: list[Closed] = closed_over(site, loss) if loss is not None else []

    def choose(self) -> Batch:
        rng, argnum = self.site.hint.argument("rng"), self.site.hint.argument("argnum")
        if argnum is not None:
            self.batch.argnum = self.positions(argnum)
        else:
            taken = {*self.gradient.argnums, *self.numbers(rng)}
            found = self.candidates(taken, self.names(rng))
            if self.batch.question is not None:
                self.batch.argnum = _as_tuple([f'"{each}"' if isinstance(each, str) else str(each) for each in found])
                return self.batch
            keys = [
                each.name for each in self.closed if each.is_key_of_rows and each.name not in (*found, *self.names(rng))
            ]
            if keys:
                self.check_given(keys)
                (only, *_) = found
                shown = self.site.text(self.argument_call().args[only]) if isinstance(only, int) else only
                self.batch.question = (
                    f"the loss closes over {_listed(keys)}, which {'have' if len(keys) > 1 else 'has'} a key for each "
                    f"example of `{shown}`"
                )
                named = [f'"{each}"' if isinstance(each, str) else str(each) for each in (*found, *keys)]
                self.batch.argnum = _as_tuple(named)
                return self.batch
            positions = [self.position(each, None) if isinstance(each, str) else each for each in found]
            self.batch.argnum = _as_tuple([str(each) for each in positions])
        if rng is not None:
            is_none = isinstance(rng.value, ast.Constant) and rng.value.value is None
            self.batch.rng = "()" if is_none else self.positions(rng)
        if self.batch.appended:
            self.check_appended()
        if self.batch.moved:
            self.complete_moves()
        return self.batch

    # What the hint says

    def positions(self, argument: Argument) -> str:
        """An argument of the hint with the names in it replaced by positions."""
        items = self.items(argument)
        self.check_numbers(argument, items)
        # What becomes an argument besides stands behind the others.
        if not self.names(argument) and all((whole_number(item) or 0) >= 0 for item in items):
            return argument.text
        texts = [
            str(self.position(item.value, argument))
            if isinstance(item, ast.Constant) and isinstance(item.value, str)
            else ast.unparse(item)
            if (number := whole_number(item)) is None
            else str(self.from_front(number))
            for item in items
        ]
        if not isinstance(argument.value, ast.Tuple | ast.List):
            return texts[0]
        return f"({', '.join(texts)}{',' if len(texts) == 1 else ''})"

    def given(self) -> int | None:
        """How many positional arguments the calls have, None if they do not show it or differ."""
        counts = {len(call.args) for call in self.gradient.calls}
        is_clear = not any("*" in stars_of(call) for call in self.gradient.calls)
        return counts.pop() if len(counts) == 1 and is_clear else None

    def from_front(self, number: int) -> int:
        """A position counted from the first argument, where that is clear; negative ones count from the last."""
        given = self.given()
        return number if number >= 0 or given is None else given + number

    def check_numbers(self, argument: Argument, items: Sequence[ast.expr]) -> None:
        """Report positions that the loss does not have, where its parameters can be seen."""
        if self.loss is None or self.loss.node.args.vararg is not None:
            return
        count = self.loss.num_positional
        for item in items:
            position, given = whole_number(item), self.given()
            if position is not None and not -(count if given is None else given) <= position < count:
                self.site.error(
                    f"the loss takes {count} argument{'s' * (count > 1)} by position, counted from 0, so there is no "
                    f"argument {position}; write the name of the value in quotes, also where the loss closes over it"
                    if count
                    else "the loss takes no arguments by position",
                    argument,
                )

    def names(self, argument: Argument | None) -> list[str]:
        """The strings in an argument of the hint."""
        return [value for value in self.constants(argument) if isinstance(value, str)]

    def numbers(self, argument: Argument | None) -> list[int]:
        """The whole numbers in an argument of the hint."""
        items = self.items(argument)
        return [self.from_front(number) for number in map(whole_number, items) if number is not None]

    def constants(self, argument: Argument | None) -> list[object]:
        """The literals in an argument of the hint."""
        return [item.value for item in self.items(argument) if isinstance(item, ast.Constant)]

    def items(self, argument: Argument | None) -> Sequence[ast.expr]:
        """The expressions in an argument of the hint."""
        value = argument.value if argument is not None else None
        return value.elts if isinstance(value, ast.Tuple | ast.List) else [value] if value is not None else []

    def position(self, name: str, argument: Argument | None) -> int:
        """The position that the argument called `name` will have."""
        call = self.gradient.calls[0] if self.gradient.calls else None
        if self.loss is not None and name in self.loss.by_keyword:
            self.site.refuse(
                f"`{name}` has no position, as it stands after a `*` among the parameters of the loss; remove that `*`"
            )
        if name in self.parameters:
            index = self.parameters.index(name)
            if call is not None and any(keyword.arg == name for keyword in call.keywords):
                self.batch.moved.append(name)
            elif call is not None and index >= len(call.args):
                self.site.refuse(f"the call does not pass `{name}`, so there is nothing to cut; pass it by position")
            return index
        if any(closed.name == name for closed in self.closed):
            if name not in self.batch.appended:
                self.batch.appended.append(name)
            positional = 0 if self.loss is None else self.loss.num_positional
            return positional + self.batch.appended.index(name)
        if self.loss is None:
            what = ast.unparse(self.gradient.function)
            self.refuse_unseen(name)
            self.site.refuse(f"cannot see the parameters of `{what}`; write the position instead of `{name}`")
        known = [*self.parameters, *(closed.name for closed in self.closed)]
        message = f"the loss has no parameter `{name}` and closes over none{nearest(name, known)}"
        self.site.misspelt(message, argument, name, known)

    # What the call shows

    def candidates(self, taken: set[int], keys: list[str]) -> list[int | str]:
        """What is neither differentiated nor a key: positions, or names of keyword arguments and closed-over values.

        If these are several, the question says so.
        """
        call = self.argument_call()
        candidates = [
            index
            for index, argument in enumerate(call.args)
            if index not in taken
            and not isinstance(argument, ast.Constant)
            and self.parameter_name(index) not in keys
            and not self.is_one_key(index, argument)
            and not is_size(self.site, self.site.facts, argument)
            and not self.is_called(self.parameter_name(index))
        ]
        data = self.step_data(call)
        candidates = [index for index in candidates if data.may_be_batch(call.args[index])] or candidates
        named = [
            keyword.arg
            for keyword in call.keywords
            if keyword.arg is not None
            and keyword.arg not in keys
            and not isinstance(keyword.value, ast.Constant)
            and not looks_like_key(keyword.arg)
            and not made_as_keys(self.site, self.site.facts, keyword.value)
            and not self.is_called(keyword.arg)
        ]
        if not candidates and len(named) == 1 and named[0] in self.parameters:
            return [named[0]]
        if len(candidates) == 1 and not (set(named) & set(self.parameters)):
            return [candidates[0]]
        if not candidates and not named:
            return self.closed_candidates(keys)
        others = [argument for index, argument in enumerate(call.args) if index not in candidates]
        rows = [call.args[index] for index in candidates]
        if not named and are_of_one_batch(self.site, self.site.facts, rows, others):
            return [*candidates]
        listed = [self.site.text(call.args[index]) for index in candidates] + named
        if named and self.loss is None:
            self.site.refuse(
                f"more than one argument could be the batch: {_listed(listed)}, and the loss cannot be seen; pass "
                "those that have one row per example by position, and write `argnum=` with their positions",
                call,
            )
        self.batch.question = f"more than one argument could be the batch: {_listed(listed)}"
        return [*candidates, *named]

    def step_data(self, call: ast.Call) -> StepData:
        """What the names of the step are made of."""
        differentiated = [argument for index, argument in enumerate(call.args) if index in self.gradient.argnums]
        return StepData(self.site, call, differentiated)

    def is_one_key(self, index: int, argument: ast.expr) -> bool:
        """Whether the argument is made as one random key, or it or its parameter is named like one.

        Several may be one per example.
        """
        name = argument.attr if isinstance(argument, ast.Attribute) else getattr(argument, "id", "")
        is_named = names_one_key(name) or names_one_key(self.parameter_name(index) or "")
        return is_named or made_as_keys(self.site, self.site.facts, argument) is True

    def is_called(self, name: str | None) -> bool:
        """Whether the loss calls its parameter `name`, such as the `apply_fn` of a model: no array, so no batch."""
        return self.loss is not None and any(
            isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name
            for node in self.loss.nodes()
        )

    def parameter_name(self, index: int) -> str | None:
        return self.parameters[index] if index < len(self.parameters) else None

    def closed_candidates(self, keys: list[str]) -> list[int | str]:
        """Names of the closed-over values that can be the batch, once they are arguments."""
        data: list[int | str] = [
            closed.name
            for closed in self.closed
            if closed.name not in keys and self.loss is not None and self.may_be_data(closed, self.loss)
        ]
        step = self.step_data(self.argument_call())
        data = [each for each in data if step.may_be_batch(ast.Name(str(each), ast.Load()))] or data
        if not data:
            self.refuse_unseen()
            self.site.refuse(
                "no argument of this call could be the batch: all are differentiated, keys or settings; pass the batch "
                "to the loss by position, or write `argnum=` with the name or the position of what is the batch all "
                "the same"
            )
        nodes = [closed.node for closed in self.closed if closed.name in data]
        home = self.loss.facts if self.loss is not None else self.site.facts
        if len(data) > 1 and not are_of_one_batch(self.site, home, nodes, self.argument_call().args):
            names = [str(each) for each in data] + [closed.name for closed in self.closed if closed.is_key]
            self.check_given(names)
            self.batch.question = (
                f"the loss closes over its batch, and more than one value could be it: {_listed(map(str, data))}"
            )
        return data

    def argument_call(self) -> ast.Call:
        """A call that stands for all calls of the gradient function."""
        calls = self.gradient.calls
        if not calls:
            self.refuse_to_guess("this gradient function is not called where it can be seen")
        for call in calls:
            if "*" in stars_of(call):
                self.refuse_to_guess("star-args hide which argument is the batch", call)
        if len({len(call.args) for call in calls}) > 1:
            self.refuse_to_guess("this gradient function is called with different numbers of arguments")
        return calls[0]

    def refuse_unseen(self, name: str | None = None) -> None:
        """Refuse a loss that closes over its batch, perhaps over what has a name, where no parameter can be added."""
        made = self.gradient.function
        if self.loss is not None:
            return
        if isinstance(made, ast.Call) and self.site.call_form(made).is_called:
            batch = next(
                (each.id for each in made.args if isinstance(each, ast.Name) and name in (None, each.id)), None
            )
            if batch is not None:
                text = ast.unparse(made)
                self.site.refuse(
                    f"the loss that `{text}` makes cannot be seen; write `lambda params, {batch}: {text}(params)` in "
                    "its place, with a parameter for each value that has one row per example, and pass these to the "
                    "gradient as well"
                )
        for each in possible_functions(self.site, self.gradient.loss):
            names = [closed.name for closed in closed_over(self.site, each) if self.may_be_data(closed, each)]
            if names if name is None else name in names:
                where = self.site.place(each.facts.path, each.node.lineno)
                self.site.refuse(
                    f"the loss may be the function of {where}, which closes over {_listed(names)}; give it a parameter "
                    "for what has one row per example, and pass that to this gradient by position"
                )

    def may_be_data(self, closed: Closed, loss: Loss) -> bool:
        """Whether what a loss closes over may be the batch: no model, key or size."""
        return closed.is_data and not closed.is_key and not is_size(self.site, loss.facts, closed.node)

    def refuse_to_guess(self, reason: str, node: ast.expr | None = None) -> NoReturn:
        """Refuse a batch that the calls do not show; the user is told which argument has which position."""
        others = [item for item in enumerate(self.parameters) if item[0] not in self.gradient.argnums]
        shown = ", ".join(f"`{name}` is {index}" for index, name in others)
        self.site.refuse(
            f"{reason}; write `argnum=` with the position of the argument that has one row per example"
            f"{f' ({shown})' if shown else ', counted from 0'}, and `rng=` with that of its random key, or `rng=None`",
            node,
        )

    # What the calls must change

    def check_appended(self) -> None:
        """Refuses closed-over values that cannot become arguments of the loss."""
        assert self.loss is not None
        remade = self.check_given(self.batch.appended)
        if remade is not None:
            self.batch.remade, self.batch.appended = remade.text, [*remade.names]
            return
        self.batch.has_defaults = is_used_elsewhere(self.site, self.gradient, self.loss)

    def check_given(self, names: list[str]) -> RemadeLoss | None:
        """The loss that its factory makes anew with parameters for these names, None where the loss itself gets them.

        Refuses names that cannot become arguments of the loss.
        """
        assert self.loss is not None
        remade = remade_loss(self.site, self.gradient, self.loss, names)
        reason = None if remade is not None else cannot_be_given(self.site, self.gradient, self.loss, names)
        if reason is not None:
            what = "an argument; pass it" if len(names) == 1 else "arguments; pass them"
            self.site.refuse(f"{reason}, so {_listed(names)} cannot become {what} by position to the loss function")
        return remade

    def complete_moves(self) -> None:
        """Refuses keywords that cannot become positional without a gap or another order of evaluation."""
        last = max(self.parameters.index(name) for name in self.batch.moved)
        for call in self.gradient.calls:
            moved = self.parameters[len(call.args) : last + 1]
            keywords = {keyword.arg: keyword.value for keyword in call.keywords}
            if not set(moved) <= keywords.keys() or None in keywords:
                self.site.refuse(
                    "the batch is passed by keyword and something before it is not passed; pass it by position"
                )
            order = [name for name in keywords if name in moved]
            first = list(keywords)[: len(moved)]
            in_order = order == moved and first == moved
            if not in_order and not all(isinstance(value, _HARMLESS) for value in keywords.values()):
                self.site.refuse(
                    "the batch is passed by keyword, and passing it by position would change the order in which the "
                    "arguments are evaluated; pass it by position"
                )
            self.batch.moved = moved


def _as_tuple(items: Sequence[str]) -> str:
    return items[0] if len(items) == 1 else f"({', '.join(items)})"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
