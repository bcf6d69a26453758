"""The commands: each asks the engine, shows the result in the chosen format, and sets the exit status.

Modules of the engine are imported inside the commands, so that `--help` and `--version` stay fast.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import IO, TYPE_CHECKING, Any

import click

from mmrewrite import __version__
from mmrewrite.cli import last_resort
from mmrewrite.cli.options import (
    COMMON,
    ENTRY_AND_ARGS,
    Number,
    color_option,
    common_options,
    complete_place,
    device_options,
    evidence_option,
    format_option,
    limit_options,
    since_option,
    source_options,
    stdin_option,
    trace_options,
    watch_option,
)
from mmrewrite.cli.reports import render
from mmrewrite.cli.terminal import style
from mmrewrite.cli.terminal.output import print_output, say
from mmrewrite.cli.terminal.style import color_of_environment
from mmrewrite.directives.schedule_names import SCHEDULES

if TYPE_CHECKING:
    from mmrewrite.cli.session import Session


# What shells report for a process that SIGINT ends.
INTERRUPTED = 130


class _HelpFormatter(click.HelpFormatter):
    def write_heading(self, heading: str) -> None:
        """Write a heading in the color of headings."""
        super().write_heading(style.visible(style.head(heading)))


class _CommandContext(click.Context):
    formatter_class = _HelpFormatter

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        # Without waiting for `--color`, which not every command and no wrong one gets to.
        self.color = color_of_environment()


class _Command(click.Command):
    context_class = _CommandContext

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what the command does, and what it reads if no path is given."""
        super().format_help_text(ctx, formatter)
        if any(param.name == "paths" for param in self.params):
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(
                    "PATHS are files and folders; by default what the configuration includes, else `.`."
                )

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options of the command before those that commands share."""
        parts: dict[str, list[tuple[str, str]]] = {"Options": [], "Common options": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record is not None:
                parts["Common options" if param.name in COMMON else "Options"].append(record)
        for heading, records in parts.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


class CommandGroup(click.Group):
    """The commands. Ctrl-C, and a package of somebody else that is not what it should be, end each with a sentence."""

    context_class = _CommandContext
    command_class = _Command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the options of the program itself."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as problem:
            raise _in_color(problem) from None

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            say(f"\nInterrupted: {str(interrupt) or 'nothing was written'}.")
            sys.exit(INTERRUPTED)
        except click.UsageError as problem:
            raise _in_color(problem) from None
        except BrokenPipeError as problem:
            raise last_resort.PipeBroken from problem
        except Exception as problem:
            from mmrewrite.codemod.plugins import BadPlugin

            if not isinstance(problem, BadPlugin):
                raise
            say(f"{style.error('Error')}: {problem}")
            sys.exit(2)


class _ColoredUsageError(click.UsageError):
    """A usage error that is shown in the colors of other errors."""

    def show(self, file: IO[Any] | None = None) -> None:
        """Print it on standard error, below the usage of the command."""
        if self.ctx is not None:
            click.echo(f"{self.ctx.get_usage()}\nTry '{self.ctx.command_path} --help' for help.\n", err=True)
        # The context of the command is over.
        say(
            f"{style.error('Error')}: {self.message}",
            color=color_of_environment() if self.ctx is None else self.ctx.color,
        )


def _in_color(problem: click.UsageError) -> click.UsageError:
    return _ColoredUsageError(problem.format_message(), problem.ctx)


def _session(options: Mapping[str, Any]) -> Session:
    from mmrewrite.cli.session import Session
    from mmrewrite.cli.source_options import SourceOptions

    return Session(SourceOptions(**options))


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="mmrewrite", message="%(prog)s %(version)s")
def cli() -> None:
    """Rewrite a one-device JAX program with hints into a multi-device one.

    In this order: `suggest` or hints by hand, `diff`, `plan`, `verify`, `apply`.
    """


@cli.command()
@source_options
@stdin_option
@since_option
@evidence_option
@trace_options
@click.option("--exit-code", is_flag=True, help="Exit with 1 if there are changes.")
@watch_option
def diff(exit_code: bool, **options: Any) -> None:
    """Print the changes as a git patch. Writes nothing."""
    session = _session(options)
    session.show_rewrites("diff", shows_patch=True)
    session.print_messages("would change")
    session.exit(changes_matter=exit_code)


@cli.command()
@source_options
@stdin_option
def apply(**options: Any) -> None:
    """Rewrite the files in place: hints are replaced by code."""
    from mmrewrite.cli.next_steps import after_apply

    session = _session(options)
    if session.reads_stdin:
        session.write_to_stdout()
    session.write_in_place()
    session.show_rewrites("apply", shows_patch=False)
    session.print_messages("changed", session.written)
    session.print_next(after_apply(session))
    session.exit()


@cli.command(short_help="Exit with 1 if anything would change.")
@source_options
@stdin_option
@since_option
@evidence_option
@trace_options
@click.option("--out", type=click.Path(file_okay=False), help="Check the mirror in this folder instead.")
@watch_option
def check(out: str | None, **options: Any) -> None:
    """Exit with 1 if `apply` would change anything or, with --out, if `build` would, and if anything is refused."""
    if out is not None and (options["since"] is not None or options["stdin_filename"] is not None):
        raise click.UsageError("--out is about a whole mirror; leave out --since and --stdin-filename.")
    if out == "":
        raise click.UsageError("--out has an empty name; name the folder of the mirror.")
    session = _session(options)
    if out is None:
        session.show_rewrites("check", shows_patch=True)
        session.print_messages("would change")
        for sentence in () if session.options.quiet else session.suggestions():
            session.say(sentence)
        session.exit(changes_matter=True, found=session.refused)
    from mmrewrite.mirror.build import NotBuilt, check_place, stale

    try:
        check_place(session.paths, out)
        with session.progress.erased_at_end():
            found = stale(session.program, out, session.progress.track)
    except NotBuilt as problem:
        session.fail(str(problem))
    session.add_unread(found.unread)
    session.show_rewrites("check", shows_patch=False, mirror=found)
    for sentence in found.problems:
        session.say(sentence)
    session.print_messages(f"of {out} would change", len(found.problems))
    session.exit(found=bool(found.problems) or session.refused)


@cli.command(short_help="Write a rewritten copy of the sources.")
@source_options
@click.option("--out", type=click.Path(file_okay=False), help="The folder to write to.")
def build(out: str | None, **options: Any) -> None:
    """Write a rewritten copy of the sources, and leave the sources alone."""
    from mmrewrite.mirror.build import NotBuilt, build_mirror, check_place

    session = _session(options)
    target = out or (str(session.config.folder / session.config.out) if session.config.out else None)
    if target is None:
        raise click.UsageError("Where to? Give --out DIR, or `out` in [tool.mmrewrite].")
    try:
        check_place(session.paths, target)
        with session.progress.erased_at_end():
            built = build_mirror(session.program, target, session.progress.track)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"{target} is not complete; run again, and it goes on where it stopped") from None
    except NotBuilt as problem:
        session.fail(str(problem))
    session.unwritten += built.unwritten
    session.add_unread(built.unread)
    session.show_rewrites("build", shows_patch=False)
    for sentence in built.problems:
        session.say(sentence)
    changed = sum(result.path not in built.outdated for result in session.changed)
    session.print_messages(f"of {built.count} in {target} changed", changed)
    session.exit()


@cli.command(short_help="Show what will run where, and when.")
@source_options
@click.option("--microbatches", type=click.IntRange(1), metavar="N", help="How many, if the source does not say.")
@click.option("--entry", metavar="MODULE:FUNCTION", help="Import the rewritten program and trace this step.")
@click.option("--args", "arguments", metavar="MODULE:FUNCTION", help="Function that returns the step's arguments.")
@click.option(
    "--devices",
    type=click.IntRange(1),
    metavar="N",
    help="Virtual devices for --entry; default: as many as meshes need.",
)
@limit_options
@click.option("--measure", is_flag=True, help="Run the step of --entry and time each of its programs.")
@click.option(
    "--memory", metavar="SIZE", help="Memory of a device, such as 80GiB; exit with 1 if --entry does not fit."
)
@click.option("--suggest", "device", metavar="DEVICE", help="Compare meshes, counts and schedules on h100, v5p, ...")
@click.option("--html", type=click.Path(), help="Also write --format html to this file.")
@click.option("--svg", type=click.Path(), help="Also write --format svg, the timeline alone, to this file.")
def plan(
    microbatches: int | None,
    entry: str | None,
    arguments: str | None,
    devices: int | None,
    measure: bool,
    memory: str | None,
    device: str | None,
    time_limit: float,
    memory_limit: float | None,
    output_limit: float,
    html: str | None,
    svg: str | None,
    **options: Any,
) -> None:
    """Show what will run where: meshes, tasks, stages, and the schedule as a timeline. Changes no source."""
    from mmrewrite.codemod.registry import Registry
    from mmrewrite.directives.sizes import parse_size
    from mmrewrite.mirror.limits import program_limits
    from mmrewrite.plan.plan import NotPlanned, PlanRequest, make_plan

    if (entry is None) != (arguments is None):
        raise click.UsageError(ENTRY_AND_ARGS)
    if device is not None:
        if entry is None or arguments is None:
            raise click.UsageError("--suggest compares plans of the step of --entry; give that and --args.")
        if measure or html is not None or svg is not None or microbatches is not None:
            raise click.UsageError("--suggest runs and draws nothing; leave --measure, --microbatches and files out.")
        from mmrewrite.cli.suggest import compare_plans, device_of
        from mmrewrite.suggest.comparison import Wanted

        given = {"device": device, "devices": devices, "memory": memory}
        record, count = device_of(given, needed=False)
        limits = program_limits(time_limit, memory_limit, output_limit)
        compare_plans(Wanted(entry, arguments, record, count, limits), options)
    if entry is None and (measure or memory or devices is not None):
        raise click.UsageError("--measure, --memory and --devices are about the step of --entry; give that and --args.")
    try:
        room = None if memory is None else parse_size(memory)
    except ValueError as problem:
        raise click.UsageError(f"--memory: {problem}.") from None
    session = _session(options)
    for output_format, path in (("html", html), ("svg", svg)):
        if path is not None:
            session.check_report(output_format, path)
    request = PlanRequest(
        microbatches,
        entry,
        arguments,
        devices,
        measure,
        program_limits(time_limit, memory_limit, output_limit),
        room,
    )
    try:
        with session.progress.phase(f"plan: {entry}" if entry else "plan") as tell:
            planned = make_plan(session.program, tuple(Registry()), request, tell=tell)
    except NotPlanned as problem:
        if session.options.verbose and problem.details:
            say(problem.details)
        session.fail(str(problem))
    session.keep_trace(planned)
    for output_format, path in (("html", html), ("svg", svg)):
        if path is not None:
            session.write_report("plan", output_format, planned, path)
    session.show("plan", planned)
    session.print_messages("would change")
    session.exit(found=planned.fit is not None and not planned.fit.fits)


@cli.command(short_help="Write the hints of a program without any.")
@source_options
@click.option("--entry", metavar="MODULE:STEP", help="The compiled step.")
@click.option("--args", "arguments", metavar="MODULE:FUNCTION", help="Function that returns the step's arguments.")
@click.option("--run", "runs", is_flag=True, help="In place of --args: run the module until it calls the step.")
@device_options
@click.option("--batch", type=click.IntRange(1), metavar="ROWS", help="Rows of a batch, where --args makes fewer.")
@click.option("--stages", type=click.IntRange(2), metavar="N", help="Only plans with N stages.")
@click.option("--data", type=click.IntRange(1), metavar="N", help="Only plans with a data axis of N devices.")
@click.option("--model", type=click.IntRange(1), metavar="N", help="Only plans with a model axis of N devices.")
@click.option("--microbatches", type=click.IntRange(1), metavar="N", help="Only plans with N microbatches.")
@click.option(
    "--schedule", type=click.Choice(SCHEDULES), metavar="NAME", help="Only plans with this schedule, or auto."
)
@click.option("--calibrate", "calibrates", is_flag=True, help="Time a layer's programs on this machine's accelerator.")
@click.option("--apply", "applies", is_flag=True, help="Write the hints into the files.")
@click.option("--check", "checks", is_flag=True, help="Run `verify` on virtual devices, and see that its plan fits.")
@limit_options
def suggest(
    entry: str | None,
    arguments: str | None,
    runs: bool,
    batch: int | None,
    stages: int | None,
    data: int | None,
    model: int | None,
    microbatches: int | None,
    schedule: str | None,
    calibrates: bool,
    applies: bool,
    checks: bool,
    time_limit: float,
    memory_limit: float | None,
    output_limit: float,
    **options: Any,
) -> None:
    """Say which mesh, microbatches and schedule suit a program without hints, and where its hints go.

    The verdict comes first: a pipeline, with the patch of its hints, or plain `jax.jit`, or that nothing fits.
    Times are predicted. Writes nothing without --apply.
    """
    from mmrewrite.cli.suggest import configured, device_of, suggest_and_show
    from mmrewrite.mirror.limits import program_limits
    from mmrewrite.suggest.comparison import RUN, Wanted
    from mmrewrite.suggest.search import FixedChoices

    known = configured(options)
    entry = entry or known.get("entry")
    if arguments is None and not runs:
        arguments, runs = known.get("args"), known.get("run", False)
    if entry is None:
        raise click.UsageError("Which step? Give --entry MODULE:STEP, or `entry` in [tool.mmrewrite.suggest].")
    if runs == (arguments is not None):
        raise click.UsageError("Give --args, the function that returns the step's arguments, or --run.")
    if runs and checks:
        raise click.UsageError("--check calls the step with the arguments of --args; give that in place of --run.")
    device, devices = device_of(options, needed=True)
    limits = program_limits(time_limit, memory_limit, output_limit)
    fixed = FixedChoices(stages, data, model, microbatches, schedule)
    wanted = Wanted(entry, arguments or RUN, device, devices, limits, batch, fixed, calibrates)
    suggest_and_show(wanted, options, applies=applies, checks=checks)


@cli.command(short_help="Replace old names of JAX; needs no hints.")
@source_options
@stdin_option
@since_option
@click.option("--diff", "shows", is_flag=True, help="Print a git patch instead of writing.")
@click.option("--check", "checks", is_flag=True, help="Print the patch and exit with 1 if there is one.")
@click.option("--target-jax", metavar="VERSION", help="The oldest JAX that the result must run on; default 0.10.")
@click.option(
    "--upgrade-to",
    multiple=True,
    metavar="[PACKAGE==]VERSION",
    help="Write what runs on this JAX, or PACKAGE, too. With --check: print what an upgrade to it needs, by release.",
)
@click.option("--explain-compat", is_flag=True, help="Say what keeps each use of mmruntime.compat from plain JAX.")
def modernize(
    shows: bool,
    checks: bool,
    target_jax: str | None,
    upgrade_to: tuple[str, ...],
    explain_compat: bool,
    **options: Any,
) -> None:
    """Replace names that JAX removed or deprecated, in place. Needs no hints."""
    from mmrewrite.codemod.products import old_names

    # Many are used to giving both, as to other formatters; a check shows the patch as well.
    mode = "check" if checks else "diff" if shows else "write"
    old_names().run(options, mode=mode, target_jax=target_jax, upgrade_to=upgrade_to, explain_compat=explain_compat)


@cli.command(short_help="Run both programs and compare results.")
@source_options
@click.option("--since", metavar="REV", help="After `apply`: the original is this git revision, of the same files.")
@click.option("--entry", metavar="MODULE:FUNCTION", help="The function to call; default: those with a `verify` hint.")
@click.option("--args", "arguments", metavar="MODULE:FUNCTION", help="Function that returns its arguments, a tuple.")
@click.option(
    "--devices",
    type=click.IntRange(1),
    metavar="N",
    help="Virtual devices; default: as many as meshes need, 8 at least.",
)
@click.option("--real-devices", "real", is_flag=True, help="Run on this machine's own devices, as they are set up.")
@limit_options
@click.option("--rtol", type=Number(0), help="Relative tolerance; 1e-4 for float32, none for shorter types.")
@click.option("--atol", type=Number(0), help="Absolute tolerance; 1e-5 of an array's largest element for float32.")
def verify(
    entry: str | None,
    arguments: str | None,
    devices: int | None,
    real: bool,
    time_limit: float,
    memory_limit: float | None,
    output_limit: float,
    rtol: float | None,
    atol: float | None,
    since: str | None,
    **options: Any,
) -> None:
    """Run the original on one device and the rewritten program on many, and compare. Changes no source."""
    from mmrewrite.codemod.registry import Registry
    from mmrewrite.files.patch import patch_of
    from mmrewrite.mirror.child_process import NotRun
    from mmrewrite.mirror.limits import program_limits
    from mmrewrite.verify.verify import NotVerified, VerifyRequest
    from mmrewrite.verify.verify import verify as compare

    if (entry is None) != (arguments is None):
        raise click.UsageError(ENTRY_AND_ARGS)
    if real and devices is not None:
        raise click.UsageError("--devices counts virtual devices; leave it out with --real-devices.")
    session = _session(options)
    patch = patch_of(session.results, session.top)
    request = VerifyRequest(
        entry, arguments, devices, real, rtol, atol, program_limits(time_limit, memory_limit, output_limit), since
    )
    try:
        verified = compare(
            session.program, session.selection, tuple(Registry()), patch, request, session.progress.phase
        )
    except (NotRun, NotVerified) as problem:
        session.fail(str(problem))
    # The verdict comes last.
    session.print_messages("would change")
    session.show("verify", verified)
    session.exit(found=verified.failed, incomplete=verified.incomplete)


@cli.command(short_help="Start a program in several processes.", context_settings={"allow_interspersed_args": False})
@click.option("--processes", type=click.IntRange(1), required=True, metavar="N", help="How many processes to start.")
@click.option(
    "--devices-per-process",
    type=click.IntRange(1),
    metavar="K",
    help="Virtual CPU devices for each; with JAX_PLATFORMS=cuda, GPUs. Default: what JAX finds.",
)
@click.option(
    "--max-restarts", type=click.IntRange(0), default=0, metavar="R", help="Start again, up to R times, if one fails."
)
@click.option(
    "--min-processes",
    type=click.IntRange(1),
    metavar="M",
    help="Start again without the processes that a signal killed, with M or more.",
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@format_option
@color_option
def run(
    command: tuple[str, ...],
    processes: int,
    devices_per_process: int | None,
    max_restarts: int,
    min_processes: int | None,
    output_format: str,
) -> None:
    """Start COMMAND in N processes on this machine, which `mm.init()` connects.

    Every line of output begins with the number of its process. When one fails, all are ended, its last lines come last,
    and its exit status is that of the run. Ctrl-C ends all. Write `--` before COMMAND.
    """
    from mmrewrite.cli.run import RunOptions, run_job

    sys.exit(run_job(command, RunOptions(processes, devices_per_process, max_restarts, min_processes, output_format)))


@cli.command(short_help="Print a script that completes in a shell.")
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def completion(shell: str) -> None:
    """Print a script that completes commands and options in SHELL.

    \b
    bash: eval "$(mmrewrite completion bash)"                in ~/.bashrc
    zsh:  eval "$(mmrewrite completion zsh)"                 in ~/.zshrc
    fish: mmrewrite completion fish | source                 in ~/.config/fish/config.fish
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(cli, {}, "mmrewrite", "_MMREWRITE_COMPLETE").source())


@cli.command(short_help="Serve an editor, as a language server.")
@click.option("--stdio", is_flag=True, hidden=True, help="What editors pass; there is no other way to connect.")
def lsp(stdio: bool) -> None:
    """Start the language server, which editors talk to on standard input and output."""
    try:
        import pygls.lsp.server  # noqa: F401
    except ImportError:
        say(f'{style.error("Error")}: the language server needs pygls: pip install "mmrewrite[lsp]"')
        sys.exit(2)
    if sys.stdin is None:
        raise click.UsageError("An editor talks to the language server on standard input, which is closed.")
    from mmrewrite.lsp.server import serve

    serve()


@cli.command()
@format_option
@color_option
def codemods(output_format: str) -> None:
    """List the codemods."""
    from mmrewrite.codemod.products import registries

    summaries = {
        title: {name: registry.summary(name) for name in registry}
        for title, registry in zip(("For hints:", "For `mmrewrite modernize`:"), registries(), strict=True)
    }
    print_output(render("codemods", output_format, summaries), output_format)


@cli.command(short_help="Explain a codemod, or a line of a file.")
@click.argument("what", metavar="CODEMOD|FILE:LINE", shell_complete=complete_place)
@common_options
def explain(what: str, **options: Any) -> None:
    """Show a codemod's page, or what becomes of a line, or where a generated line comes from.

    Options but --format and --color are for lines; -v also prints the other changes and refusals of the file.
    """
    from mmrewrite.cli.config import no_codemod
    from mmrewrite.cli.explain import explain_line, place_in
    from mmrewrite.cli.pages import codemod_names, page_of
    from mmrewrite.cli.reports._messages import Explanation
    from mmrewrite.cli.source_options import SourceOptions
    from mmrewrite.files.walk import SUFFIXES

    place = place_in(what)
    if place is not None:
        explain_line(*place, SourceOptions(**options))
    if (page := page_of(what)) is None:
        if os.path.isdir(what):
            raise click.UsageError(f"{what} is a folder; name a file in it, and a line, as in {what}/model.py:1.")
        if what.endswith(SUFFIXES) or os.path.exists(what):
            raise click.UsageError(f"{what} is a file; name a line of it, as in {what}:1.")
        if ":" in what:
            raise click.UsageError(f"{what}: write FILE:LINE, with a number for the line, as in model.py:1.")
        raise click.UsageError(no_codemod(what, codemod_names()))
    output_format = options["output_format"]
    print_output(render("explain", output_format, Explanation(what, tuple(page.split("\n")))), output_format)


@cli.command(short_help="Write a section of configuration.")
@click.option("--print", "prints", is_flag=True, help="Print the section instead of writing it.")
@format_option
@color_option
def init(prints: bool, output_format: str) -> None:
    """Write a commented [tool.mmrewrite] section, after looking at the repository."""
    from mmrewrite.cli.init import NotInitialized, initialize, said, section
    from mmrewrite.cli.reports._messages import Initialized
    from mmrewrite.cli.terminal.progress import StatusLine

    try:
        with StatusLine().phase("looking at the repository"):
            if prints:
                content, name = section(os.curdir)
                initialized = Initialized(name, content, is_written=False)
            else:
                initialized = initialize(os.curdir)
        if initialized.is_written:
            say(said(initialized))
    except NotInitialized as problem:
        say(f"{style.error('Error')}: {problem}")
        sys.exit(2)
    print_output(render("init", output_format, initialized), output_format)
