"""What the bytes of a file hold if a codemod may have a site there.

The codemods know it better, and take longer to import than a thousand files take to read. A wheel has it in
`markers.bin`, which its build makes. A checkout makes it at first use, and keeps it beside Python's own caches for as
long as no file of the package changes. What others install is not in it.
"""

from __future__ import annotations

import importlib
import marshal
import os
from functools import cache

from mmrewrite.files.walk import folder_states

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Held = dict[bytes, tuple[bytes, bytes]]
    Tables = tuple[dict[bytes, tuple[bytes, ...]], tuple[bytes, ...], dict[bytes, bytes], Held]

BUILT = "markers.bin"
_HERE = os.path.dirname(os.path.abspath(__file__))
_KEPT = os.path.join(_HERE, "__pycache__", BUILT)
# Of the marshal format: every Python that runs us reads it.
_VERSION = 2


class Markers:
    """The tables by which files are passed over.

    Attributes:
        anywhere: Any of these says that a file is to be read, each with the words in it.
        packages: Else it has one of these, and
        homes: a word that ends an old name, beside one of the words that name its home, which stand here as one text.
        held: Functions that lost keywords, by their own names: words that name their homes, and the keywords.
    """

    def __init__(self, tables: Tables) -> None:
        self.anywhere, self.packages, self.homes, self.held = tables


@cache
def markers() -> Markers:
    """The markers of our own codemods."""
    built = _load(os.path.join(_HERE, BUILT))
    if built is not None:
        return Markers(built)
    state = list(folder_states(os.path.dirname(_HERE)))
    kept = _load(_KEPT)
    if isinstance(kept, tuple) and kept[0] == state:
        return Markers(kept[1])
    tables = made()
    _keep(marshal.dumps((state, tables), _VERSION))
    return Markers(tables)


def made() -> Tables:
    """The tables, from the codemods."""
    # They are all above this file, which asks for them only here.
    tables: Tables = importlib.import_module(f"{__name__.partition('.')[0]}.marker_tables").tables()
    return tables


def built() -> bytes:
    """The content of `markers.bin`."""
    return marshal.dumps(made(), _VERSION)


def _load(path: str) -> Any:
    try:
        with open(path, "rb") as file:
            # From a file, `marshal.load` would read each value by itself.
            return marshal.loads(file.read())
    except (OSError, ValueError, EOFError, TypeError):
        return None


def _keep(data: bytes) -> None:
    from mmrewrite.files.write import write_new

    try:
        write_new(_KEPT, data, 0o644, lasting=False)
    except OSError:
        # Python keeps nothing there, either, so it is made again next time.
        return
