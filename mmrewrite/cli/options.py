"""The options that commands share: what to read, which codemods to run, and what to print."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from mmrewrite.cli.reports import DEFAULT_FORMAT, formats_of
from mmrewrite.cli.terminal.style import ALWAYS, AUTO, NEVER, set_color

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

ENTRY_AND_ARGS = "--entry and --args go together: the step, and the function that returns its arguments."

# Of the programs that are run, in seconds and MB.
TIME_LIMIT, OUTPUT_LIMIT = 1800.0, 64.0
# Of any limit: a sum of this many seconds, GB or MB is as good as none.
_MOST = 1e9

_Command = TypeVar("_Command", bound=Callable[..., Any])


# Generic in newer versions of click only.
class Number(click.FloatRange):
    """A number in a range, which infinity and NaN are not: neither bounds anything, and NaN is not even compared."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number; a usage error if it is none, or not in the range."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is no finite number.", param, ctx)
        return number


# Generic in newer versions of click only.
class _FormatName(click.ParamType):  # type: ignore[type-arg]
    """One of the formats that the command at hand has."""

    name = "format"

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str | None:
        """The choices, for `--help`. Click before 8.2 passes no context."""
        ctx = ctx or click.get_current_context(silent=True)
        return None if ctx is None else f"[{'|'.join(_formats(ctx))}]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name itself; a usage error that lists the choices if the command lacks that format."""
        # Every command has the default, so that most runs import one format only.
        if value != DEFAULT_FORMAT and ctx is not None and value not in (known := _formats(ctx)):
            self.fail(f"{value!r} is not one of {', '.join(map(repr, known))}.", param, ctx)
        return str(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The choices that start as typed."""
        from click.shell_completion import CompletionItem

        return [CompletionItem(name) for name in _formats(ctx) if name.startswith(incomplete)]


def _formats(ctx: click.Context) -> tuple[str, ...]:
    return formats_of(ctx.command.name or "")


def complete_codemods(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The codemods whose names start as the last word typed, in a list with commas."""
    from click.shell_completion import CompletionItem

    from mmrewrite.cli.pages import codemod_names

    before, comma, last = incomplete.rpartition(",")
    return [CompletionItem(f"{before}{comma}{name}") for name in codemod_names() if name.startswith(last)]


def complete_place(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """What `explain` takes: the codemods whose names start as typed, else files."""
    from click.shell_completion import CompletionItem

    return complete_codemods(ctx, param, incomplete) or [CompletionItem(incomplete, type="file")]


def _all_of(*decorators: Callable[[_Command], _Command]) -> Callable[[_Command], _Command]:
    """Some options, in the order in which `--help` lists them."""
    return lambda command: functools.reduce(lambda made, decorate: decorate(made), reversed(decorators), command)


# The formats that `cli/reports` has for the command.
format_option = click.option(
    "--format", "output_format", type=_FormatName(), default=DEFAULT_FORMAT, help="The format of the output."
)
# About all that the command prints.
color_option = click.option(
    "--color",
    type=click.Choice((AUTO, ALWAYS, NEVER)),
    default=AUTO,
    # Before the others, so that their errors follow it.
    is_eager=True,
    expose_value=False,
    callback=set_color,
    help="Color what is printed; auto: on a terminal, unless NO_COLOR or FORCE_COLOR is set.",
)
_codemods = functools.partial(click.option, multiple=True, metavar="CODEMOD,...", shell_complete=complete_codemods)
# Most options of `SourceOptions`, for every command that reads sources; and with them the paths.
common_options = _all_of(
    _codemods("--select", help="Run only these codemods."),
    _codemods("--ignore", help="Run all codemods but these."),
    click.option(
        "--jobs", "-j", type=click.IntRange(1), metavar="N", default=os.cpu_count() or 1, help="Worker processes."
    ),
    click.option("--no-cache", is_flag=True, help="Neither use results of earlier runs nor keep these."),
    click.option("--strict", is_flag=True, help="Exit with 1 if anything was refused."),
    click.option(
        "--config",
        type=click.Path(exists=True, dir_okay=False),
        help="Read this file instead of the nearest mmrewrite.toml or pyproject.toml.",
    ),
    click.option("-q", "--quiet", is_flag=True, help="Print results and errors only."),
    click.option("-v", "--verbose", is_flag=True, help="Print the codemods and hints behind each change."),
    format_option,
    color_option,
)
# Their names in a command, whose `--help` lists them last.
COMMON = frozenset(each.name for each in common_options(click.Command(None)).params)
source_options = _all_of(click.argument("paths", nargs=-1, type=click.Path()), common_options)
# For commands that an editor runs on a buffer.
stdin_option = click.option(
    "--stdin-filename",
    metavar="FILE",
    help="With `-` for PATH: read standard input, as the content of this file.",
)
# For commands that report and may leave files out.
since_option = click.option(
    "--since", metavar="REV", help="Report only files that differ from this git revision, and new ones."
)


def watch_option(command: _Command) -> _Command:
    """`--watch`, right above a command's function, for commands that write nothing."""

    @functools.wraps(command)
    def watched(watch: bool, **values: Any) -> None:
        if not watch:
            command(**values)
            return
        if values["stdin_filename"] is not None:
            raise click.UsageError("--watch is about files; leave it out with standard input.")
        from mmrewrite.cli.watch import watch as run_again

        run_again(lambda: command(**values), values["paths"], values["config"])

    flag = click.option("--watch", is_flag=True, help="Run again whenever a file changes, until Ctrl-C.")
    return cast(_Command, flag(watched))


class _Limit(Number):
    """A bound of a program that is run."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number, or what is as good as none."""
        return min(super().convert(value, param, ctx), _MOST)


_limit = functools.partial(click.option, type=_Limit(0, min_open=True))
# For commands that run the user's programs.
limit_options = _all_of(
    _limit(
        "--time-limit",
        default=TIME_LIMIT,
        metavar="SECONDS",
        show_default=True,
        help="End a program that runs longer.",
    ),
    _limit(
        "--memory-limit",
        metavar="GB",
        help="End a program that takes more; by default nine tenths of the machine's (Linux).",
    ),
    _limit(
        "--output-limit",
        default=OUTPUT_LIMIT,
        metavar="MB",
        show_default=True,
        help="End a program that prints more.",
    ),
)
# For reviews that show a traced step: `--entry` and what belongs to it, and what `verify` has found.
trace_options = _all_of(
    click.option(
        "--entry",
        metavar="MODULE:FUNCTION",
        help="With --format markdown or html: trace this step, and show bytes, transfers and exactness.",
    ),
    click.option("--args", "arguments", metavar="MODULE:FUNCTION", help="Function that returns its arguments."),
    limit_options,
)
evidence_option = click.option(
    "--evidence",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="With --format markdown or html: show this output of `verify --format json`, if it is about the same patch.",
)
# What stands in place of a value of a device's record: the option, its form and what it is.
_DEVICE_VALUES = (
    ("memory", "SIZE", "Memory of a device, such as 80GiB."),
    ("flops", "RATE", "Operations per second of dense products, such as 989TFLOP/s."),
    ("bandwidth", "RATE", "Bandwidth of its memory, such as 3.35TB/s."),
    ("near", "RATE", "Bandwidth within a host, in one direction, such as 450GB/s."),
    ("far", "RATE", "Bandwidth between hosts, in one direction."),
    ("launch", "TIME", "Time to issue a program, such as 60us."),
)


# `--devices`, `--device` and what changes its record.
device_options = _all_of(
    click.option("--devices", type=click.IntRange(1), metavar="N", help="How many accelerators."),
    click.option("--device", metavar="NAME", help="Their kind: h100, b200, mi300x, v5p, cpu, ..."),
    click.option(
        "--cluster",
        type=click.Path(exists=True, dir_okay=False),
        help="In place of --device: a TOML file about devices and links.",
    ),
    click.option("--per-host", "host", type=click.IntRange(1), metavar="N", help="Devices that share a near link."),
    *(click.option(f"--{name}", metavar=form, help=what) for name, form, what in _DEVICE_VALUES),
    click.option(
        "--efficiency", type=Number(0, 1, min_open=True), metavar="PART", help="Share of --flops that products reach."
    ),
)
