"""Make docs/tutorial.ipynb, the tutorial's nnx track as a notebook, and run it.

    python tools/make_notebook.py            # run it, and write it with its outputs
    python tools/make_notebook.py --check    # run it, and hold what it prints to what stands there

Needs the development environment, with ipykernel. The exit status is 1 if a cell fails, or prints something else.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOK = ROOT / "docs" / "tutorial.ipynb"


def cells() -> tuple[str, ...]:
    """The texts of the cells; commands are those of the page."""
    sys.path.insert(0, str(Path(__file__).parent))
    import run_tutorial

    page = run_tutorial.commands("nnx")

    def printed(beginning: str) -> str:
        return "\n".join(f"!{line}" for line in page if line.startswith(beginning))

    return (
        """# From a program for one device to a pipeline, with Flax nnx

The [tutorial](tutorial.md) as a notebook: a program for one device becomes a pipeline of four stages. It runs anywhere,
on eight virtual devices of a CPU, in one to three minutes. It needs `pip install "mmrewrite[flax]"`, or a line of
[Installation](install.md) while the package is not on PyPI. Files are written into a temporary folder.""",
        """import os
import tempfile

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.chdir(tempfile.mkdtemp())""",
        """## A program for one device""",
        f"%%writefile {run_tutorial.PROGRAM}\n{run_tutorial.program('nnx').rstrip()}",
        f"!{run_tutorial.RUN}",
        """## Hints

A hint is a comment that begins with `# mm:`. The command finds where hints belong, and writes them.""",
        printed("mmrewrite suggest"),
        """## What would change

`diff` writes nothing.""",
        printed("mmrewrite diff"),
        """## What will run where

This reads the source alone. A row is a stage; `F2` is the forward pass of microbatch 2, `B2` its backward pass.""",
        printed("mmrewrite plan"),
        """## Whether it computes the same

The original runs on one device and the rewritten program on virtual ones; all arguments and results are compared. The
verdict is in the last line.""",
        printed("mmrewrite verify"),
        """## Apply and run

The losses are those of before. Virtual devices share the processor, so this is not faster: it shows that it works.""",
        f"{printed('mmrewrite apply')}\n!{run_tutorial.RUN}",
        """## Where everything is

The rewritten program is ordinary Python. In this process it has the eight devices, of which it takes four.""",
        """import train

model, optimizer = train.make_state()
train.train_step(model, optimizer, train.make_batch(0))
for index, block in enumerate(model.blocks):
    print(f"layer {index} on", *block.wide.kernel.get_value().devices())""",
        "print(train.train_step.explain().headlines[0])",
        """`print(train.train_step.explain())` shows every table. Where to go from here: [hints for your own
program](guide.md), [how to choose](choose.md), [what will run where](plan.md).""",
    )


def notebook() -> Any:
    """The notebook without outputs."""
    import nbformat

    made = nbformat.v4.new_notebook()
    made.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for number, text in enumerate(cells()):
        kind = nbformat.v4.new_code_cell if _is_code(text) else nbformat.v4.new_markdown_cell
        made.cells.append(kind(text, id=f"cell-{number}"))
    return made


def _is_code(text: str) -> bool:
    return text.startswith(("import ", "%%", "!", "print("))


def run(made: Any) -> None:
    """Run all cells, with the commands of this environment; each has one output, of text.

    Raises:
        nbclient.exceptions.CellExecutionError: If one fails.
    """
    import nbformat
    from nbclient import NotebookClient

    own = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_", "MMR"))}
    folder = os.path.dirname(sys.executable)
    own |= {"PATH": os.pathsep.join([folder, own.get("PATH", "")]), "NO_COLOR": "1", "COLUMNS": "100"}
    # How long something takes is another thing each time.
    own |= {"MMREWRITE_PROGRESS": "0", "MMRUNTIME_PROGRESS": "0", "MMREWRITE_CACHE_DIR": ""}
    with tempfile.TemporaryDirectory() as work:
        own["TMPDIR"] = work
        NotebookClient(made, timeout=900, kernel_name="python3", resources={"metadata": {"path": work}}).execute(
            env=own
        )
    made.metadata = notebook().metadata
    for cell in made.cells:
        if cell.cell_type == "code":
            cell.metadata.pop("execution", None)
            text = "".join(str(output.get("text", "")) for output in cell.outputs).replace("\r\n", "\n")
            cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=text)] if text else []


def said(made: Any) -> list[str]:
    """The outputs, without what another machine changes: losses, differences, hashes, predicted times, and memory."""
    texts = ("".join(output["text"] for output in cell.get("outputs", ())) for cell in made.cells)
    return [
        re.sub(
            r"\b[\d.]+e-\d+\b|\b[0-9a-f]{12,}\b|(?<=loss )[\d.]+|[\d.]+(?= ([KMG]iB|[mu]?s)\b)",
            "*",
            re.sub(r"[ -]{2,}", " ", text),
        )
        for text in texts
    ]


def main() -> int:
    """Write the notebook, or hold what it prints to what stands there."""
    import nbformat

    made = notebook()
    run(made)
    if "--check" not in sys.argv:
        nbformat.write(made, NOTEBOOK)
        return 0
    stands = nbformat.read(NOTEBOOK, as_version=4)
    for cell, old, now, before in zip(made.cells, stands.cells, said(made), said(stands), strict=True):
        if now != before or cell.source != old.source:
            print(f"{old.source}\n\nis, and prints now\n\n{cell.source}\n\n{now}\n\nwhere it printed\n\n{before}")
            print("run: python tools/make_notebook.py")
            return 1
    print(f"{NOTEBOOK.name}: {len(made.cells)} cells, each prints what it printed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
