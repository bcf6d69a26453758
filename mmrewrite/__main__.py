"""The start of the command line. `--version` is answered first, before slow imports."""

from __future__ import annotations

import gc
import sys

from mmrewrite.cli import last_resort

# Young objects are still looked at, so that what lives shortly does not pile up.
_RARELY = (200_000, 100, 1000)


def main() -> None:
    """Run the command line and exit with its status."""
    last_resort.prepare_streams()
    try:
        _run(sys.argv[1:])
    except KeyboardInterrupt:
        # Before the command began, so there is nothing to say.
        sys.exit(130)
    except Exception as error:
        sys.exit(last_resort.report(error))
    finally:
        # Nor is there any use in looking for garbage at the exit.
        gc.freeze()


def _run(arguments: list[str]) -> None:
    if arguments in (["--version"], ["-V"]):
        from mmrewrite import __version__

        print(f"mmrewrite {__version__}", flush=True)
        return
    replay = None
    if arguments[:1] and arguments[0] in ("diff", "check", "modernize"):
        from mmrewrite.cli.quick import has_nothing_to_say

        if has_nothing_to_say(arguments):
            return
        from mmrewrite.cli.replay import replay_of

        replay = replay_of(arguments)
        status = replay.print_again() if replay is not None else None
        if status is not None:
            sys.exit(status)
        if replay is not None:
            replay.begin()
    # Syntax trees are many objects that stay to the end. With Python's own thresholds, looking for cycles among them
    # again and again takes twice as long as making them.
    gc.set_threshold(*_RARELY)
    try:
        from mmrewrite.cli.commands import cli

        cli(prog_name="mmrewrite", obj=replay)
    except SystemExit as end:
        if replay is not None:
            replay.keep(end.code)
        raise


def _leave_current_folder() -> None:
    """Take the current folder from the import path, where `python -m` puts it: it may hold an `ast.py` of the user."""
    import os

    try:
        here = os.getcwd()
    except OSError:
        # It is gone, so nothing is imported from it.
        return
    if sys.path and sys.path[0] in ("", here) and not os.path.isfile(os.path.join(here, "mmrewrite", "__main__.py")):
        del sys.path[0]


if __name__ == "__main__":
    _leave_current_folder()
    main()
