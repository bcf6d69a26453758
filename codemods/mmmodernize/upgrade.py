"""What an upgrade of a project needs, grouped by the release that makes it necessary."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from mmmodernize.names.name_index import TITLES, OldName, last_releases, numbers
from mmmodernize.names.newer_index import Lacking
from mmmodernize.names.private_index import row_of
from mmrewrite.cli.upgrade import Upgrade, UpgradeGroup, UpgradeItem
from mmrewrite.results import Change, LeftAlone, Rewrite

# For a codemod about text that is no old name, and the name in use: the package, the release, and what it made of it.
ChangedIn = Callable[[str, str], tuple[str, str, Change] | None]


_SINCE = re.compile(rf"\bsince ({'|'.join(TITLES.values())}) (\d+(?:\.\d+)+)(, it warns| it warns)?")


@dataclass(frozen=True)
class Newer:
    """The uses of names that the target of an upgrade lacks.

    Attributes:
        lacking: The names.
        missing: The uses that nothing guards; the reason says what is not certain of one, if anything.
        guarded: Those in code that chooses by the version; the reason says where.
    """

    lacking: Lacking
    missing: tuple[LeftAlone, ...]
    guarded: tuple[LeftAlone, ...]


def upgrade_of(
    results: Iterable[Rewrite],
    target: Mapping[str, str],
    changed_in: ChangedIn,
    newer: Newer | None = None,
    command: str = "mmrewrite modernize",
) -> Upgrade:
    """Group what `modernize` found by the releases that matter for an upgrade.

    Args:
        results: What becomes of each file.
        target: The release of a package that the upgrade leads to; of the others, the newest that the index knows.
        changed_in: For a codemod about text that is no old name: which release made what of it.
        newer: The uses of names that `target` lacks.
        command: What rewrites them.
    """
    wanted = {**last_releases(), **target}
    groups: dict[tuple[str, str, str, Change], list[UpgradeItem]] = {}
    lacking = newer.lacking if newer is not None else Lacking({}, {})
    for item, is_settled, (package, release, change) in _placed(results, changed_in, wanted):
        item = with_releases(item, lacking)
        if is_settled:
            part = "settled"
        elif not package:
            # What is replaced or refused does not work today, whenever it was that it stopped.
            part = "unknown" if item.outcome == "left" else "needed"
        elif numbers(release) > numbers(wanted[package]):
            part = "later"
        else:
            part = "warned" if change == "warns" else "needed"
        groups.setdefault((part, package, release, change), []).append(item)
    for item, is_settled, package, release in _newer_items(newer) if newer is not None else ():
        groups.setdefault(("settled" if is_settled else "newer", package, release, "comes"), []).append(item)

    def of(wanted_part: str) -> tuple[UpgradeGroup, ...]:
        found = [
            UpgradeGroup(package, release, change, tuple(sorted(items)))
            for (part, package, release, change), items in groups.items()
            if part == wanted_part
        ]
        order = list(TITLES)
        return tuple(
            sorted(found, key=lambda group: (order.index(group.package or order[0]), numbers(group.release or "0")))
        )

    used = {package for _, package, _, _ in groups} | target.keys()
    shown = {package: wanted[package] for package in TITLES if package in used}
    return Upgrade(
        shown,
        of("needed"),
        of("warned"),
        of("later"),
        of("unknown"),
        of("newer"),
        of("settled"),
        command,
        TITLES,
    )


_QUOTED = re.compile(r"`([^`]*)`")
_DOTTED = re.compile(r"(?<![\w.])[A-Za-z_]\w*(?:\.\w+)+")
# What advice calls the modules.
_ALIASES = {"jnp": "jax.numpy", "nnx": "flax.nnx", "nn": "flax.linen", "ocp": "orbax.checkpoint"}


def with_releases(item: UpgradeItem, lacking: Lacking) -> UpgradeItem:
    """The item, whose advice says of names that the target lacks when they came."""
    told: dict[str, str] = {}
    if item.outcome != "rewritten":
        for dotted in (each for quoted in _QUOTED.findall(item.detail) for each in _DOTTED.findall(quoted)):
            head, _, rest = dotted.partition(".")
            found = lacking.of_name(f"{_ALIASES.get(head, head)}.{rest}")
            is_told = dotted in (item.name, item.text) or f"`{dotted}` needs " in item.detail
            if found is not None and not is_told:
                row, release = found
                told[dotted] = f"`{dotted}` {row.told(release, lacking.wanted[row.package])}"
    return replace(item, detail="; ".join((item.detail, *told.values())))


def _newer_items(newer: Newer) -> Iterator[tuple[UpgradeItem, bool, str, str]]:
    """Every use of a name that is lacking, whether it is settled, and the package and the release that has the name."""
    for use in (*newer.missing, *newer.guarded):
        found = newer.lacking.of_name(use.name)
        assert found is not None
        row, release = found
        told = row.told(release, newer.lacking.wanted[row.package])
        history = told if row.name == use.name else f"is in `{row.name}`, which {told}"
        advice = f"upgrade to {TITLES[row.package]} {release}, or do without it"
        detail, outcome = (use.reason, "left") if use in newer.guarded else (use.reason or advice, "by hand")
        place = (use.path, use.line, use.column, use.text)
        item = UpgradeItem(*place, use.name, history, outcome, detail)  # type: ignore[arg-type]
        yield item, use.is_settled, row.package, release


def _placed(
    results: Iterable[Rewrite], changed_in: ChangedIn, wanted: Mapping[str, str]
) -> Iterator[tuple[UpgradeItem, bool, tuple[str, str, Change]]]:
    """Every use, whether it is settled, and the package, the release that matters, and what that makes of it."""
    for item, codemods, is_settled in _items(results):
        row = row_of(item.name)
        if row is not None:
            yield item, is_settled, (row.package, *_turning_point(row, wanted[row.package]))
        else:
            changes = (changed_in(codemod, item.name) for codemod in codemods)
            change = next(filter(None, changes), None)
            yield item, is_settled, change or told_change(item.detail, fails=item.outcome == "by hand")


def told_change(reason: str, *, fails: bool) -> tuple[str, str, Change]:
    """The release that the report of a use names, and what it makes of it: "... is gone since Flax 0.9.0"."""
    found = _SINCE.search(reason)
    if found is None:
        return "", "", "unknown"
    package = next(package for package, title in TITLES.items() if title == found[1])
    return package, found[2], "stops" if fails else "warns" if found[3] else "changes"


def _turning_point(row: OldName, wanted: str) -> tuple[str, Change]:
    """The release that matters for an upgrade: the one that ends a name, if it is on the way; else the next warning."""
    ends = row.gone_in(wanted)
    if ends is not None:
        return ends, "stops"
    ends = row.gone_since
    warns = next((release for release, state in row.changes if state == "warns"), None)
    if warns is not None:
        return warns, "warns"
    assert ends is not None
    return ends, "stops"


def _items(results: Iterable[Rewrite]) -> Iterator[tuple[UpgradeItem, tuple[str, ...], bool]]:
    """Every use of an old name, with the codemods that it is up to, and whether it is settled."""
    for result in results:
        rewritten: dict[tuple[int, int, str, str], dict[str, None]] = {}
        for edit in result.edits:
            for hint in edit.hints:
                if hint.name or not hint.text.startswith(("import ", "from ")):
                    place = (hint.line, hint.column, hint.text, hint.name)
                    rewritten.setdefault(place, {}).update(dict.fromkeys(edit.codemods))
        for (line, column, text, name), codemods in rewritten.items():
            detail = ", ".join(codemods)
            item = UpgradeItem(result.path, line, column, text, name, _history(name), "rewritten", detail)
            yield item, tuple(codemods), False
        for each in result.refusals:
            name, text = (each.hint.name, each.hint.text) if each.hint is not None else ("", "")
            item = UpgradeItem(each.path, each.line, each.column, text, name, _history(name), "by hand", each.reason)
            yield item, (each.codemod,), False
        for left in result.left:
            history = _history(left.name)
            item = UpgradeItem(left.path, left.line, left.column, left.text, left.name, history, "left", left.reason)
            yield item, (), left.is_settled


def _history(name: str) -> str:
    row = row_of(name)
    return row.history if row is not None else ""
