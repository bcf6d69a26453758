"""Which files get names of the packages from other files of the project, by text alone, with nothing slow to import.

In `from compat import xp` no word says that `xp` is `jax.numpy`: that stands in another file, maybe several files on.
Modules are told apart by the last part of their names alone, so more files may be found than take something, not fewer.
"""

from __future__ import annotations

import bisect
import itertools
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from functools import cached_property

from mmmodernize.names.gate import has_last_part, is_home

_ROOTS = (b"jax", b"flax", b"optax", b"chex", b"orbax")
_CONTINUED = re.compile(rb"\\\r?\n")
_COMMENT = re.compile(rb"#[^\n]*")
_HOME = re.compile(rb"(?:^|[^\w.])from[ \t\f]*([\w.]+)[ \t\f]*$")
_LISTED = re.compile(rb"[ \t\f]*\(((?:#[^\n]*|[^)#])*)")
_REST = re.compile(rb"[^\n;#]*")
_ASSIGNED = re.compile(rb"^([ \t]*+)(\w[\w, \t]*+)(?::[^=\n]*+)?=(?!=)[ \t]*\(?([^\n(]++)$", re.MULTILINE)
_WORD = re.compile(rb"\w+")
_DOTTED = re.compile(rb"[A-Za-z_][\w.]*")
_CLASS = re.compile(rb"^class[ \t]+(\w+)", re.MULTILINE)
_ATTRIBUTE = re.compile(rb"[.\"'][ \t\r\n\\]*(\w+)")
_QUOTED = re.compile(rb"[\"'](\w+(?:[.:]\w+)*)[\"']")
# What names a module by its text: `mock.patch("compat.xp")`, `import_module("compat")`, `sys.modules["compat"]`.
_BY_TEXT = (b"patch", b"setattr", b"import_module", b".modules")
_ALL = b"*"
_LOOKS_UP = b"\ndef __getattr__("

# The module after `from`, None in `import a.b`; and the names, each with the one that it binds.
_Import = tuple[bytes | None, Sequence[tuple[bytes, bytes]]]


class TakenNames:
    """The files that take names of the packages from other files, and the files that give these.

    Args:
        files: The bytes of the files of the run, by path.
        load: The bytes of a file that is not of the run, None if there is none.

    Attributes:
        takers: Paths of the files that take such a name.
        givers: Paths of the files of the run that they may take it from.
    """

    def __init__(self, files: Mapping[str, bytes], load: Callable[[str], bytes | None]) -> None:
        self._of_run = {_place(path): path for path in files}
        self._files = {_place(path): _File(_place(path), data) for path, data in files.items()}
        self._load_others(load)
        self.takers: set[str] = set()
        self.givers: set[str] = set()
        # By the last parts of the names of modules: their files, what they give, and the modules that they hold.
        self._by_stem: dict[bytes, list[_File]] = {}
        self._given: dict[bytes, set[bytes]] = {}
        self._held: dict[bytes, dict[bytes, set[bytes]]] = {}
        for file in self._files.values():
            self._by_stem.setdefault(file.stem, []).append(file)
            self._given.setdefault(file.stem, set()).update(file.gives)
            self._held.setdefault(file.package, {}).setdefault(file.stem, set()).add(file.stem)
        if any(self._given.values()):
            # Each may take what another one was just found to give.
            in_order = self._imported_first()
            while sum(map(self._take, in_order)):
                pass

    def _imported_first(self) -> list[_File]:
        """The files, each behind those that it imports, but for circles. Two rounds then do for most projects."""
        found: dict[_File, None] = {}
        begun: set[_File] = set()
        for start in self._files.values():
            stack = [(start, self._imported_by(start))] if start not in begun else []
            while stack:
                file, others = stack[-1]
                begun.add(file)
                other = next((each for each in others if each not in begun), None)
                if other is not None:
                    stack.append((other, self._imported_by(other)))
                else:
                    found[file] = None
                    stack.pop()
        return list(found)

    def between(self, paths: Collection[str], others: Collection[str]) -> set[str]:
        """The files through which values may pass from some files to others, by imports in either direction."""
        places = self._tied(set(map(_place, paths))) & self._tied(set(map(_place, others)))
        return {self._of_run[place] for place in places if place in self._of_run}

    def _tied(self, places: Set[str]) -> set[str]:
        """The places of some files, of all that they import, and of all that import them."""
        found: set[str] = set()
        for graph in self._imports:
            queue = list(places)
            seen = set(queue)
            for place in queue:
                more = graph.get(place, set()) - seen
                seen |= more
                queue += more
            found |= seen
        return found

    @cached_property
    def _imports(self) -> tuple[Mapping[str, set[str]], Mapping[str, set[str]]]:
        """For each file, the files that it may import and the files that may import it."""
        imports = {file.place: {each.place for each in self._imported_by(file)} for file in self._files.values()}
        importing: dict[str, set[str]] = {}
        for place, others in imports.items():
            for other in others:
                importing.setdefault(other, set()).add(place)
        return imports, importing

    def _imported_by(self, file: _File) -> Iterator[_File]:
        """The files that a file may import, by the last parts of their names."""
        for home, names in file.imports:
            stem = None if home is None else file.stem_of(home)
            if home is None or stem is not None:
                for each in (stem, *(name.rpartition(b".")[2] for name, _ in names)):
                    yield from self._by_stem.get(each, ()) if each is not None else ()

    def _load_others(self, load: Callable[[str], bytes | None]) -> None:
        """Read the modules beside the run to which imports of files lead that may use an old name."""
        known: dict[str, bytes | None] = {place: file.data for place, file in self._files.items()}

        def there(place: str) -> bool:
            if "site-packages" in place:
                return place in self._files
            if place not in known:
                known[place] = load(os.path.relpath(place).replace(os.sep, "/"))
            return known[place] is not None

        queue = [file for file in self._files.values() if file.imports and has_last_part(file.data)]
        while queue:
            for place in queue.pop().led_to(there):
                if place not in self._files:
                    data = known[place]
                    self._files[place] = _File(place, data or b"")
                    queue.append(self._files[place])

    def _take(self, file: _File) -> bool:
        """Note what a file takes, by what is known so far, and say whether that is more than before."""
        before = len(file.gives), file.holds
        seen: dict[bytes, bool] = {}
        for home, names in file.imports:
            stem = None if home is None else file.stem_of(home)
            if home is not None and stem is None:
                continue
            given = self._given.get(stem, ()) if stem is not None else ()
            for name, local in names:
                if stem is not None and name == _ALL and given:
                    self._note(file, stem, set(given))
                elif stem is not None and (name in given or _ALL in given):
                    self._note(file, stem, {local})
                self._take_module(file, stem, name, local, seen)
        for text in file.quoted:
            self._take_by_text(file, text, seen)
        file.note_assigned()
        self._given[file.stem] |= file.gives
        return (len(file.gives), file.holds) != before

    def _take_module(self, file: _File, stem: bytes | None, name: bytes, local: bytes, seen: dict[bytes, bool]) -> None:
        """Note a module of the project that an import binds, and what the file reads of it."""
        held = self._held.get(stem, {}) if stem is not None else {}
        if name == _ALL:
            modules = [(inner, each) for inner, stems in held.items() for each in stems]
        elif stem is None and local == name.partition(b".")[0]:
            modules = [(local, local)]
        else:
            modules = [(local, each) for each in held.get(name, {name.rpartition(b".")[2]})]
        for bound, module in modules:
            if module in self._by_stem or module in self._held:
                stems = self._held.setdefault(file.stem, {}).setdefault(bound, set())
                file.holds += module not in stems
                stems.add(module)
                if self._is_read(file, module, seen):
                    self._note(file, module, {bound})

    def _take_by_text(self, file: _File, text: bytes, seen: dict[bytes, bool]) -> None:
        """Note that a file names a module by its text and reads what it gives, or names that there as well."""
        parts = text.replace(b":", b".").split(b".")
        if parts[-1] in self._by_stem and self._is_read(file, parts[-1], seen):
            self._note(file, parts[-1], set())
        for stem, name in itertools.pairwise(parts):
            if name in self._given.get(stem, ()):
                self._note(file, stem, set())

    def _note(self, file: _File, stem: bytes, names: set[bytes]) -> None:
        file.gives |= names
        others = [other for other in self._by_stem.get(stem, ()) if other is not file]
        if file.place in self._of_run:
            self.takers.add(self._of_run[file.place])
        self.givers |= {self._of_run[each.place] for each in others if each.place in self._of_run}

    def _is_read(self, file: _File, stem: bytes, seen: dict[bytes, bool]) -> bool:
        """Whether a file reads, as an attribute or in its text, something of a module or of one that this holds."""
        if stem not in seen:
            seen[stem] = False
            given, held = self._given.get(stem, set()), self._held.get(stem, {})
            seen[stem] = (
                _ALL in given
                or not given.isdisjoint(file.attributes)
                or any(
                    self._is_read(file, module, seen) for name in held.keys() & file.attributes for module in held[name]
                )
            )
            if seen[stem]:
                file.taken |= given & file.attributes
        return seen[stem]


class _File:
    """A file, and the names of the packages that it may give to others."""

    def __init__(self, place: str, data: bytes) -> None:
        self.place = place
        self.folder, file = os.path.split(place)
        self.is_package = file == "__init__.py"
        own = os.path.basename(self.folder) if self.is_package else file.rpartition(".")[0]
        self.stem = os.fsencode(own)
        self.package = os.fsencode(os.path.basename(os.path.dirname(self.folder) if self.is_package else self.folder))
        if data.lstrip().startswith(b"{"):
            # In a notebook each line is a text.
            data = data.replace(b"\\n", b"\n").replace(b'"', b"\n")
        self.data = data
        self.imports = tuple(_imports(data)) if b"import" in data else ()
        self._attributes: frozenset[bytes] | None = None
        self._quoted: frozenset[bytes] | None = None
        # What it may give, what it reads of modules of the project, and how many of these its names stand for.
        self.gives: set[bytes] = set()
        self.taken: set[bytes] = set()
        self.holds = 0
        self._assigned: dict[bytes, list[tuple[bytes, set[bytes]]]] | None = None
        for home, names in self.imports:
            for name, local in names:
                if (home or name).partition(b".")[0] in _ROOTS:
                    self.gives.add(local)
        if self.gives and _LOOKS_UP in data:
            # Whatever others ask for.
            self.gives.add(_ALL)
        self.note_assigned()

    def stem_of(self, home: bytes) -> bytes | None:
        """The last part of a module's name, None for one of the packages."""
        if home.partition(b".")[0] in _ROOTS:
            return None
        if home.strip(b"."):
            return home.rpartition(b".")[2]
        return os.fsencode(os.path.basename(self._above(len(home))))

    def _above(self, level: int) -> str:
        folder = self.folder
        for _ in range(level - 1):
            folder = os.path.dirname(folder)
        return folder

    def led_to(self, there: Callable[[str], bool]) -> Iterator[str]:
        """The places of the modules that the imports name, if they exist."""
        root = self.folder
        while there(os.path.join(root, "__init__.py")) and os.path.dirname(root) != root:
            root = os.path.dirname(root)
        for home, names in self.imports:
            inner = (home or b"").lstrip(b".")
            level = len(home or b"") - len(inner)
            for module in {inner, *(each for each, _ in names if home is None)}:
                top = os.fsdecode(module.partition(b".")[0])
                if not level and (top in sys.stdlib_module_names or os.fsencode(top) in _ROOTS):
                    continue
                start = self._above(level) if level else root
                if level or not top or any(there(os.path.join(start, top + end)) for end in (".py", "/__init__.py")):
                    parts = os.fsdecode(module).replace(".", "/")
                    base = os.path.join(start, parts) if parts else start
                    bases = [base, *(os.path.join(base, os.fsdecode(each)) for each, _ in names if home is not None)]
                    for each in bases:
                        yield from (f"{each}{end}" for end in (".py", "/__init__.py") if there(f"{each}{end}"))

    @property
    def attributes(self) -> frozenset[bytes]:
        """The words behind a dot, and at the start of a text."""
        if self._attributes is None:
            self._attributes = frozenset(_ATTRIBUTE.findall(self.data))
        return self._attributes

    @property
    def quoted(self) -> Collection[bytes]:
        """The texts that may be names of modules, or of something in them."""
        if self._quoted is None:
            is_asked = any(each in self.data for each in _BY_TEXT)
            self._quoted = frozenset(_QUOTED.findall(self.data)) if is_asked else frozenset()
        return self._quoted

    def note_assigned(self) -> None:
        """Note the names to which one that the file gives, or an attribute of it that may be one, is assigned."""
        if not self.gives:
            return
        if self._assigned is None:
            self._assigned = self._find_assigned()
        queue = list(self.gives & self._assigned.keys())
        while queue:
            name = queue.pop()
            for value, targets in self._assigned[name]:
                if self._may_give(name, value):
                    queue += (targets - self.gives) & self._assigned.keys()
                    self.gives |= targets

    def _find_assigned(self) -> dict[bytes, list[tuple[bytes, set[bytes]]]]:
        """The dotted names that are assigned, by their first part, each with the names that may have them."""
        found: dict[bytes, list[tuple[bytes, set[bytes]]]] = {}
        classes = list(_CLASS.finditer(self.data))
        starts = [match.start() for match in classes]
        for match in _ASSIGNED.finditer(self.data):
            targets = set(_WORD.findall(match[2]))
            above = bisect.bisect_left(starts, match.start())
            if match[1] and above:
                # It may be an attribute of the class above.
                targets.add(classes[above - 1][1])
            for value in _DOTTED.findall(match[3]):
                found.setdefault(value.partition(b".")[0], []).append((value, targets))
        return found

    def _may_give(self, name: bytes, value: bytes) -> bool:
        last = value.rpartition(b".")[2]
        return value == name or (value.startswith(name + b".") and (last in self.taken or is_home(last)))


def _place(path: str) -> str:
    return os.path.abspath(path)


def _imports(data: bytes) -> Iterator[_Import]:
    """The imports in a text, found by pattern, so that imports in strings are among them."""
    if b"\\\n" in data or b"\\\r\n" in data:
        data = _CONTINUED.sub(b" ", data)
    start = data.find(b"import")
    while start >= 0:
        head = data[data.rfind(b"\n", 0, start) + 1 : start]
        end = start + len(b"import")
        found = _HOME.search(head)
        if (found is not None or not head.strip() or head.rstrip().endswith((b";", b":"))) and data[end : end + 1] in (
            b" ",
            b"\t",
            b"\f",
            b"(",
            b"*",
        ):
            match = _LISTED.match(data, end) or _REST.match(data, end)
            text = b"" if match is None else _COMMENT.sub(b"", match[match.lastindex or 0])
            names = [part.split() for part in text.split(b",")]
            home = None if found is None else found[1]
            yield home, [_bound(words, is_whole=home is None) for words in names if words]
        start = data.find(b"import", end)


def _bound(words: Sequence[bytes], *, is_whole: bool) -> tuple[bytes, bytes]:
    if len(words) > 2 and words[1] == b"as":
        return words[0], words[2]
    return words[0], words[0].partition(b".")[0] if is_whole else words[0]
