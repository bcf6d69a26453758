"""The base class of codemods for old names, by the path that it had first."""

from mmmodernize.codemod import ModernizeCodemod

__all__ = ["ModernizeCodemod"]
