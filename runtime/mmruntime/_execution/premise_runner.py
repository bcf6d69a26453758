"""A step that takes something for granted of the numbers that it works on, and raises where it is not so.

The step looks at the numbers itself, and makes its results no numbers where they are not what they must be. One number
beside its results says what is wrong. Reading it would wait for the devices, so that it is read when the step is called
again, or at the end of the program; after the first call of a plan it is read at once.
"""

from __future__ import annotations

import atexit
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

from mmruntime._execution.run import RunnerAround, StepRunner, Watch


class PremiseRunner(RunnerAround):
    """A compiled step whose last results say what is wrong. Called as a `Runner`.

    Args:
        runner: Runs the step.
        premises: For each of those results, what is wrong, in words, by its number.
        waits: Whether each call reads them at once, as where results are checked anyway.
    """

    def __init__(self, runner: StepRunner, premises: Sequence[Sequence[str]], *, waits: bool = False) -> None:
        super().__init__(runner)
        self._premises = premises
        # What calls have found and nobody has read.
        self._unread: deque[Sequence[Any]] = deque()
        self._is_first = True
        self._waits = waits
        _runners.add(self)

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """Run the step once; returns as soon as it is issued, but for the first time.

        Raises:
            ValueError: If this call, the first one, or the call before has worked on other numbers than it may; in
                every process that runs the step.
        """
        return self._looked_at(self._runner(inputs))

    def run_watched(self, inputs: Sequence[Any], watch: Watch) -> list[Any]:
        """Run the step once, calling `watch` after each instruction."""
        return self._looked_at(self._runner.run_watched(inputs, watch))

    def _looked_at(self, outputs: list[Any]) -> list[Any]:
        self.misplaced = self._runner.misplaced
        count = len(outputs) - len(self._premises)
        self._unread.append(outputs[count:])
        self.read(0 if self._is_first or self._waits else 1)
        self._is_first = False
        return outputs[:count]

    def read(self, left: int = 0, *, wait: bool = True) -> None:
        """Read what all calls but the latest `left` have found.

        Args:
            left: How many calls are not waited for.
            wait: Whether to wait for the devices.

        Raises:
            ValueError: If something is wrong.
        """
        while len(self._unread) > left:
            found = self._unread.popleft()
            if not wait and not all(each.is_ready() for each in found):
                return
            for each, wrong in zip(found, self._premises, strict=True):
                number = int(each.addressable_data(0))
                if number:
                    when = (
                        ""
                        if self._is_first or self._waits
                        else " It was so in the call before, whose results are no numbers."
                    )
                    self._unread.clear()
                    raise ValueError(wrong[number - 1] + when)


_runners: weakref.WeakSet[PremiseRunner] = weakref.WeakSet()


@atexit.register
def _read_all() -> None:
    """Say what is wrong with a step's last call."""
    for runner in list(_runners):
        # Another process may have ended, and what it sends never comes.
        runner.read(wait=runner.group is None)
