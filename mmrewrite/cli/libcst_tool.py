"""The rewrites as commands of LibCST's own tool, for those who run codemods with that.

    python -m libcst.tool codemod --no-format -x mmrewrite.cli.libcst_tool.RewriteHints src/
    python -m libcst.tool codemod --no-format -x mmrewrite.cli.libcst_tool.Modernize --select replace_pjit src/

LibCST gives its codemods one file at a time, so programs of several modules are rewritten as if each were named alone:
other modules are read, and not changed. `mmrewrite apply` and `mmrewrite modernize` see whole programs, and are to be
preferred where there is a choice. Refusals are warnings of that tool; hints that cannot be read are its errors.
"""

from __future__ import annotations

import argparse
import os
from abc import ABC, abstractmethod

import libcst as cst
from libcst.codemod import CodemodCommand, CodemodContext, SkipFile

from mmrewrite.codemod.products import old_names
from mmrewrite.codemod.registry import Registry
from mmrewrite.engine.rewrite import rewrite_project
from mmrewrite.engine.settings import HintSettings
from mmrewrite.files.select import source_file
from mmrewrite.files.walk import load_file
from mmrewrite.project.facts import SourceFile
from mmrewrite.results import Rewrite


class _FileCommand(CodemodCommand, ABC):
    """Rewrites one file by an engine."""

    def __init__(self, context: CodemodContext, select: str = "") -> None:
        super().__init__(context)
        self.selected = frozenset(name.strip() for name in select.split(",") if name.strip()) or None

    @staticmethod
    def add_args(arg_parser: argparse.ArgumentParser) -> None:
        """`--select`, as `mmrewrite` has it."""
        arg_parser.add_argument("--select", default="", metavar="CODEMOD,...", help="Run only these codemods.")

    @abstractmethod
    def rewrite_file(self, file: SourceFile) -> Rewrite:
        """The result of one file."""

    def transform_module_impl(self, tree: cst.Module) -> cst.Module:
        """The rewritten module, and what the engine has to say as warnings."""
        file = source_file(self.context.filename or os.path.join(os.getcwd(), "module.py"), tree.bytes)
        result = self.rewrite_file(file)
        for refusal in result.refusals:
            self.warn(str(refusal))
        if result.failed:
            raise SkipFile("; ".join([result.failure or "", *map(str, result.errors)]).strip("; "))
        return cst.parse_module(result.result) if result.changed else tree


class RewriteHints(_FileCommand):
    """What `mmrewrite apply` does, one file at a time."""

    DESCRIPTION = "Rewrite a one-device JAX program with hints into a multi-device one."

    def rewrite_file(self, file: SourceFile) -> Rewrite:
        """The result of the engine for hints."""
        (result, *_) = rewrite_project(
            [file], Registry(), load=load_file, settings=HintSettings(selected=self.selected)
        )
        return result


class Modernize(_FileCommand):
    """What `mmrewrite modernize` does, one file at a time."""

    DESCRIPTION = "Replace names that JAX removed or deprecated."

    def rewrite_file(self, file: SourceFile) -> Rewrite:
        """The result of the engine for old names."""
        product = old_names()
        (result,) = product.rewrite([file], product.registry(), load=load_file, selected=self.selected)
        return result
