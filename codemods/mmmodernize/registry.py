"""Find the codemods of `mmrewrite modernize`, which lie in `mmmodernize.rewrites`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmrewrite.codemod.plugins import MODERNIZE
from mmrewrite.codemod.registry import Codemods

if TYPE_CHECKING:
    from mmmodernize.codemod import ModernizeCodemod


MODERNIZE_PACKAGE = "mmmodernize.rewrites"


class ModernizeRegistry(Codemods["ModernizeCodemod"]):
    """The codemods that replace old names of JAX."""

    def __init__(self, package: str = MODERNIZE_PACKAGE) -> None:
        super().__init__(package, _modernize_codemod, MODERNIZE)


def _modernize_codemod() -> type[ModernizeCodemod]:
    from mmmodernize.codemod import ModernizeCodemod

    return ModernizeCodemod
