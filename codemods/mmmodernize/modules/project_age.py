"""Which releases a project was written for at the latest, by the old names that it uses."""

from __future__ import annotations

from mmmodernize.names.name_index import numbers, old_names
from mmmodernize.sites.site import ModernizeContext


class ProjectAge:
    """What the names that a project uses say about its age: a name that went in a release was written before it."""

    def __init__(self, context: ModernizeContext) -> None:
        self._older_than: dict[str, tuple[int, ...]] = {}
        self._is_upgrade = context.settings.is_upgrade
        for module in context.modules.values():
            names = {*(use.name for use in module.uses(old_names())), *(item.name for item in module.imported)}
            for row in (old_names()[name] for name in names & old_names().keys()):
                if row.gone_since is not None:
                    gone = numbers(row.gone_since)
                    self._older_than[row.package] = min(gone, self._older_than.get(row.package, gone))

    def is_before(self, package: str, release: str) -> bool:
        """Whether the project was written for a release before `release`, for certain or as an upgrade assumes."""
        older_than = self._older_than.get(package)
        return self._is_upgrade or (older_than is not None and older_than <= numbers(release))
