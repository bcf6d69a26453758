"""Start of the command line. `--version` is answered before anything is imported that costs time."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and leave with its exit status."""
    if sys.argv[1:] in (["--version"], ["-V"]):
        from mmrewrite import __version__

        print(f"mmrewrite {__version__}")
        return
    from mmrewrite.cli.commands import cli

    cli(prog_name="mmrewrite")


if __name__ == "__main__":
    main()
