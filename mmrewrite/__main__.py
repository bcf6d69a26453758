"""The start of the command line. `--version` is answered first, before slow imports."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and exit with its status."""
    if sys.argv[1:] in (["--version"], ["-V"]):
        from mmrewrite import __version__

        print(f"mmrewrite {__version__}")
        return
    try:
        from mmrewrite.cli.commands import cli

        cli(prog_name="mmrewrite")
    except KeyboardInterrupt:
        # Before the command began, so there is nothing to say.
        sys.exit(130)


def _leave_current_folder() -> None:
    """Take the current folder from the import path, where `python -m` puts it: it may hold an `ast.py` of the user."""
    import os

    here = os.getcwd()
    if sys.path and sys.path[0] in ("", here) and not os.path.isfile(os.path.join(here, "mmrewrite", "__main__.py")):
        del sys.path[0]


if __name__ == "__main__":
    _leave_current_folder()
    main()
