"""The command line: asks the engine, prints what it returns, sets the exit status."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from mmrewrite import __version__
from mmrewrite.cli.session import Options, Run
from mmrewrite.codemod.registry import Registry
from mmrewrite.directives.vocabulary import nearest
from mmrewrite.modernize.registry import ModernizeRegistry

_Command = TypeVar("_Command", bound=Callable[..., Any])


def source_options(command: _Command) -> _Command:
    """The options that `diff`, `apply`, `build` and `check` share."""
    for decorate in reversed(
        (
            click.argument("paths", nargs=-1, type=click.Path()),
            click.option("--select", multiple=True, metavar="CODEMOD", help="Run only these codemods."),
            click.option("--ignore", multiple=True, metavar="CODEMOD", help="Run all codemods but these."),
            click.option("--jobs", "-j", type=click.IntRange(1), default=os.cpu_count() or 1, help="Worker processes."),
            click.option("--strict", is_flag=True, help="Exit with 1 when something was refused."),
            click.option("--config", type=click.Path(exists=True, dir_okay=False), help="Read this configuration."),
            click.option("-q", "--quiet", is_flag=True, help="Print errors only."),
            click.option("-v", "--verbose", is_flag=True, help="Say which codemod and which hint made each change."),
            click.option("--color", type=click.Choice(("auto", "always", "never")), default="auto"),
        )
    ):
        command = decorate(command)
    return command


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="mmrewrite", message="%(prog)s %(version)s")
def cli() -> None:
    """Rewrite a one-device JAX program, from the hints in it, into a multi-device one."""


@cli.command()
@source_options
@click.option("--exit-code", is_flag=True, help="Exit with 1 when there are changes.")
def diff(exit_code: bool, color: str, **given: Any) -> None:
    """Print a git patch of what would change. Writes nothing."""
    run = _run(Options(**given), color)
    run.print_patch()
    run.report("would change")
    run.leave(changes_matter=exit_code)


@cli.command()
@source_options
def apply(color: str, **given: Any) -> None:
    """Rewrite the files in place."""
    run = _run(Options(**given), color)
    run.write_in_place()
    run.report("changed")
    run.leave()


@cli.command()
@source_options
@click.option("--out", type=click.Path(file_okay=False), help="Compare with the mirror in this folder.")
def check(out: str | None, color: str, **given: Any) -> None:
    """Exit with 1 when `apply` would change anything, or with --out, when `build` would."""
    run = _run(Options(**given), color)
    if out is not None:
        from mmrewrite.mirror.build import stale

        problems = stale(run.paths, out, run.rules, run.results)
        for problem in problems:
            click.echo(problem, err=True)
        run.report("would change")
        run.leave(found=bool(problems))
    run.print_patch()
    run.report("would change")
    run.leave(changes_matter=True)


@cli.command()
@source_options
@click.option("--out", type=click.Path(file_okay=False), help="The folder to write to.")
def build(out: str | None, color: str, **given: Any) -> None:
    """Leave the sources alone and write a rewritten mirror of them."""
    from mmrewrite.mirror.build import NotBuilt, build_mirror

    run = _run(Options(**given), color)
    target = out or (str(run.config.folder / run.config.out) if run.config.out else None)
    if target is None:
        raise click.UsageError("Where to? Give --out DIR, or `out` in [tool.mmrewrite].")
    try:
        count = build_mirror(run.paths, target, run.rules, run.results)
    except NotBuilt as problem:
        run.fail(str(problem))
    run.report(f"of {count} in {target} changed")
    run.leave()


@cli.command()
@source_options
@click.option("--microbatches", type=click.IntRange(1), metavar="N", help="How many, where the source does not tell.")
@click.option("--entry", metavar="MODULE:FUNCTION", help="Import the rewritten program and trace this step.")
@click.option("--args", "arguments", metavar="MODULE:FUNCTION", help="What returns the step's example arguments.")
@click.option("--devices", type=click.IntRange(1), metavar="N", help="Virtual devices for --entry; 8, or the mesh's.")
@click.option("--measure", is_flag=True, help="Run the step of --entry and time each of its programs.")
@click.option("--html", type=click.Path(), help="Write one page with the meshes, timelines and tables.")
@click.option("--svg", type=click.Path(), help="Write the timeline alone.")
@click.option("--format", "form", type=click.Choice(("text", "json")), default="text", help="What to print.")
def plan(
    color: str,
    microbatches: int | None,
    entry: str | None,
    arguments: str | None,
    devices: int | None,
    measure: bool,
    html: str | None,
    svg: str | None,
    form: str,
    **given: Any,
) -> None:
    """Show what will run where: meshes, tasks, stages, and the schedule as a timeline. Changes no source."""
    from mmrewrite.plan.plan import NotPlanned, Wanted, make_plan, write_picture

    if (entry is None) != (arguments is None):
        raise click.UsageError("--entry and --args go together: the step, and what returns its arguments.")
    if entry is None and (measure or devices is not None):
        raise click.UsageError("--measure and --devices are about the step of --entry; give that and --args.")
    run = _run(Options(**given), color)
    try:
        wanted = Wanted(microbatches, entry, arguments, devices, measure)
        planned = make_plan(run.paths, run.rules, run.results, tuple(Registry()), wanted)
        if html is not None:
            write_picture(html, planned.html())
        if svg is not None:
            write_picture(svg, planned.svg())
    except NotPlanned as problem:
        if run.options.verbose and problem.details:
            click.echo(problem.details, err=True)
        run.fail(str(problem))
    click.echo(planned.json() if form == "json" else planned.text() or "Nothing in these files runs on a mesh.")
    run.report("would change")
    run.leave()


@cli.command()
@source_options
@click.option("--diff", "mode", flag_value="diff", help="Print a git patch instead of writing.")
@click.option("--check", "mode", flag_value="check", help="Print the patch and exit with 1 when there is one.")
@click.option("--target-jax", metavar="VERSION", help="The oldest JAX that the result must run on; 0.10 if not given.")
@click.option("--format", "form", type=click.Choice(("text", "json")), default="text", help="What to print.")
def modernize(mode: str | None, target_jax: str | None, form: str, color: str, **given: Any) -> None:
    """Replace what JAX removed or deprecated, in place. Needs no hints."""
    from mmrewrite.cli.modernize import run_modernize

    run_modernize(Options(**given), color, mode or "write", target_jax, form)


@cli.command()
@source_options
@click.option("--entry", metavar="MODULE:FUNCTION", help="The function to call; else those with a `verify` hint.")
@click.option("--args", "arguments", metavar="MODULE:FUNCTION", help="What returns the tuple of its arguments.")
@click.option("--devices", type=click.IntRange(1), metavar="N", help="Virtual devices; 8, or what the meshes need.")
@click.option("--real-devices", "real", is_flag=True, help="Run on this machine's own devices, as they are set up.")
@click.option("--rtol", type=click.FloatRange(0), help="Relative tolerance; 1e-4 for float32.")
@click.option("--atol", type=click.FloatRange(0), help="Absolute tolerance; 1e-6 for float32.")
@click.option("--format", "form", type=click.Choice(("text", "json")), default="text", help="What to print.")
def verify(
    color: str,
    entry: str | None,
    arguments: str | None,
    devices: int | None,
    real: bool,
    rtol: float | None,
    atol: float | None,
    form: str,
    **given: Any,
) -> None:
    """Run the original on one device and the rewritten program on many, and compare. Changes no source."""
    from mmrewrite.mirror.child_process import NotRun
    from mmrewrite.verify import NotVerified, Wanted
    from mmrewrite.verify import verify as compare

    if (entry is None) != (arguments is None):
        raise click.UsageError("--entry and --args go together: the function, and what returns its arguments.")
    if real and devices is not None:
        raise click.UsageError("--devices counts virtual devices; leave it out with --real-devices.")
    run = _run(Options(**given), color)
    wanted = Wanted(entry, arguments, devices, real, rtol, atol)
    try:
        verified = compare(run.paths, run.rules, run.selection, run.results, tuple(Registry()), run.patch(), wanted)
    except (NotRun, NotVerified) as problem:
        run.fail(str(problem))
    click.echo(verified.json() if form == "json" else verified.text())
    run.report("would change")
    run.leave(found=verified.failed, incomplete=verified.incomplete)


@cli.command()
def codemods() -> None:
    """List the codemods."""
    for title, registry in (("For hints:", Registry()), ("For `mmrewrite modernize`:", ModernizeRegistry())):
        width = max(len(name) for name in registry)
        click.echo(title)
        for name in registry:
            click.echo(f"  {name:<{width}}  {registry.summary(name)}")


@cli.command()
@click.argument("name")
def explain(name: str) -> None:
    """Show one codemod's page: what it writes and what it refuses."""
    registries = Registry(), ModernizeRegistry()
    for registry in registries:
        if name in registry:
            click.echo(registry.page(name))
            return
    raise click.UsageError(f"There is no codemod `{name}`{nearest(name, [*registries[0], *registries[1]])}")


def _run(options: Options, color: str) -> Run:
    return Run(options, color)
