"""Actions: the cells of a schedule."""

import re
from dataclasses import dataclass
from typing import Literal, cast

Kind = Literal["F", "B", "I", "W", "R"]
KINDS: tuple[Kind, ...] = ("F", "B", "I", "W", "R")

_ACTION_TEXT = re.compile(r"(\d+)([FBIWR])(\d+)")


@dataclass(frozen=True, slots=True)
class Action:
    """One cell of a schedule: a piece of one stage's work for one microbatch.

    Attributes:
        kind: `"F"` forward, `"B"` the whole backward pass, `"I"` its input half (the cotangent of the stage's input),
            `"W"` its weight half (the gradients of the stage's parameters), `"R"` the forward once more, for what the
            backward pass needs of it: where there is one, the first forward keeps its input alone.
        stage: Virtual stage, from 0.
        microbatch: Index of the microbatch, from 0.
    """

    kind: Kind
    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"

    @staticmethod
    def parse(text: str) -> "Action":
        """The action written as `text`, for instance `2F0`: stage 2, forward, microbatch 0.

        Raises:
            ValueError: If the text does not have that form.
        """
        match = _ACTION_TEXT.fullmatch(text.strip())
        if match is None:
            raise ValueError(
                f"{text!r} is not an action. Write stage, kind and microbatch, as in 2F0: "
                "the kind is F (forward), B (whole backward), I (input half), W (weight half) or R (forward once more)."
            )
        return Action(cast(Kind, match[2]), int(match[1]), int(match[3]))


# The actions of each submesh, in issue order.
Rows = tuple[tuple[Action, ...], ...]
