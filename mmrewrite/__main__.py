"""The start of the command line. `--version` is answered first, before slow imports."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and exit with its status."""
    if sys.argv[1:] in (["--version"], ["-V"]):
        from mmrewrite import __version__

        print(f"mmrewrite {__version__}")
        return
    from mmrewrite.cli.commands import cli

    cli(prog_name="mmrewrite")


if __name__ == "__main__":
    main()
