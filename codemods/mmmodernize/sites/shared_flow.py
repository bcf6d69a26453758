"""The values of the program that is modernized, followed once for all that ask."""

from __future__ import annotations

from mmmodernize.sites.site import ModernizeContext
from mmrewrite.values.flow import ValueFlow


class SharedFlow(ValueFlow):
    """The values of all modules of a run."""

    def __init__(self, context: ModernizeContext) -> None:
        super().__init__(context.project, context.modules)
