"""Paths of checkpoints that Orbax refuses: those that the source shows to be relative are told, and no others.

What the calls do when they run is in tests/runtime/test_orbax_paths.py.
"""

from __future__ import annotations

import pytest
from fixture_files import modernize_text, source_files
from test_old_parts import REGISTRY

from mmmodernize.rewrite import modernize_project

HEAD = (
    "import os\nfrom pathlib import Path\nfrom etils import epath\nimport orbax.checkpoint as ocp\n"
    'from flax.training import checkpoints\nfolder = "runs"\nsaver = ocp.PyTreeCheckpointer()\n'
)
CALLS = (
    "ocp.PyTreeCheckpointer().save({}, state)",
    "saver.save(directory={}, item=state)",
    "saver.restore({})",
    "ocp.CheckpointManager({}, options=options)",
    "checkpoints.save_checkpoint({}, state, 0)",
    "checkpoints.save_checkpoint(ckpt_dir={}, target=state, step=0)",
    "ocp.v1.save(path={}, state=state)",
)
RELATIVE = (
    *('"ckpt"', '"./ckpt"', 'f"ckpt/{n}"', '"ckpt/" + name', "folder", 'f"{folder}/{n}"', 'Path("ckpt") / "a"'),
    *('os.path.join("ckpt", "a")', 'os.path.join(folder, f"step_{n}")', 'os.path.join("ckpt", f"{n:04d}")'),
    *('Path("a", "b")', 'epath.Path("a")', "Path()", 'Path("a").joinpath("b")', 'Path("a/b").parent', 'str(Path("a"))'),
    *('"ckpt/{}".format(n)', '"ckpt/%d" % n', 'os.path.normpath("a/../b")'),
)
# In another part, which is not known, an absolute path may be.
PERHAPS = ('os.path.join("ckpt", name)', 'Path("ckpt") / name', 'Path("ckpt", name)')
# Of several paths one is relative, and what else it may be is not seen.
UNSEEN = {
    "folder if n else name": "`name` is not bound in view",
    "contextvars.ContextVar('c', default='ckpt').get()": "a context may hold another value",
}
OTHERS = (
    *('"/tmp/ckpt"', '"gs://bucket/ckpt"', "name", 'f"{name}/ckpt"', 'name + "ckpt"', 'os.path.abspath("ckpt")'),
    *('Path("ckpt") / "/tmp"', 'Path("ckpt").absolute()', 'Path("ckpt").resolve()', 'os.path.realpath("ckpt")'),
    *('os.path.join(os.getcwd(), "ckpt")', 'f"{os.getcwd()}/ckpt"', 'Path.cwd() / "ckpt"', 'os.path.join("a", "/b")'),
    *("tempfile.mkdtemp()", 'os.path.join(name, "ckpt")', 'Path(name) / "ckpt"', 'os.path.expanduser("~/ckpt")'),
    *('os.path.join("", name)', '"%s/ckpt" % name', '"{}/ckpt".format(name)', "os.path.join(*names)", '""'),
    *('f"{n:s}/a"', 'Path("~/a").expanduser()', 'str("a", encoding)'),
)


def told(text: str) -> tuple[list[int], list[str]]:
    """The lines that are refused, and what is said of others."""
    result = modernize_text(text)
    refused = [item.line for item in result.refusals if "since Orbax 0.4.8" in item.reason]
    return refused, [item.reason.partition("is relative")[2] for item in result.left if "Orbax 0.4.8" in item.reason]


def refused(calls: list[str], head: str = HEAD) -> list[str]:
    text = head + "\n".join(calls) + "\n"
    lines = text.splitlines()
    return [lines[line - 1] for line in told(text)[0]]


@pytest.mark.parametrize("call", CALLS)
def test_a_relative_path_is_told(call: str) -> None:
    calls = [call.format(path) for path in RELATIVE]
    assert refused(calls) == calls
    assert told(HEAD + "\n".join(call.format(path) for path in OTHERS)) == ([], [])


def test_a_part_that_may_be_absolute_makes_it_a_note() -> None:
    calls = "\n".join(f"saver.save({path}, state)" for path in PERHAPS)
    advice = ("`os.path.abspath(...)`", "`.absolute()`", "`.absolute()`")
    assert told(HEAD + calls) == ([], [f" unless `name` is absolute; pass {each} of it" for each in advice])


@pytest.mark.parametrize(("path", "reason"), UNSEEN.items())
def test_what_else_a_relative_path_may_be_is_told(path: str, reason: str) -> None:
    said = f" unless it is another one ({reason}); pass `os.path.abspath(...)` of it"
    assert told(f"{HEAD}import contextvars\nsaver.save({path}, state)\n") == ([], [said])


# A setting that is looked up by its path, step by step.
SETTINGS = (
    "x = config\nfor name in 'a.folder'.split('.'):\n    x = getattr(x, name)\n",
    "import functools\nx = functools.reduce(getattr, ['a', 'folder'], config)\n",
    "import functools\nx = functools.reduce(lambda d, k: d[k], ['a', 'b'], {'a': {'b': 'ckpt'}})\n",
)


@pytest.mark.parametrize("lookup", SETTINGS)
def test_a_step_that_no_text_has_is_not_taken_of_a_path(lookup: str) -> None:
    config = "class C:\n    pass\nconfig = C()\nconfig.a = C()\nconfig.a.folder = 'ckpt'\n"
    lines, notes = told(f"{HEAD}{config}{lookup}saver.save(x, state)\n")
    assert len([*lines, *notes]) == 1


def test_the_advice_is_for_what_the_path_is() -> None:
    assert told(HEAD + 'if restored(checkpoints.restore_checkpoint("~/a", state)):\n    pass\n')[1] == [
        "; if Orbax wrote the checkpoint, pass `os.path.expanduser(...)` of it"
    ]


OPTIONS = (
    'import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument("-d", "--ckpt-dir", default="ckpt")\n'
    'parser.add_argument("--out", type=Path, default=Path("out"))\n'
    'parser.add_argument("--full", type=os.path.abspath, default="ckpt")\n'
    'parser.add_argument("--none")\nparser.add_argument("--root", default="/tmp")\n'
    'parser.add_argument("--twice", default="a")\nother.add_argument("--twice", default="/b")\n'
    'parser.add_argument("--set", default="a")\nargs = parser.parse_args()\nargs.set = os.path.abspath(args.set)\n'
)
FLAGS = (
    "from absl import flags\nFLAGS = flags.FLAGS\n"
    'flags.DEFINE_string("workdir", "runs", "")\nflags.DEFINE_string(name="late", default="runs", help="")\n'
    'flags.DEFINE_string("none", None, "")\nflags.DEFINE_string("root", "/tmp", "")\n'
    'DIR = flags.DEFINE_string("dir", "runs", "")\n'
)
STRING = "make that default absolute by `os.path.abspath(...)`"
DEFAULTS = [
    (OPTIONS, "args.ckpt_dir", f" unless `--ckpt-dir` gives another; {STRING}"),
    (OPTIONS, 'f"{args.ckpt_dir}/a"', f" unless `--ckpt-dir` gives another; {STRING}"),
    (OPTIONS, "Path(args.ckpt_dir)", f" unless `--ckpt-dir` gives another; {STRING}"),
    (OPTIONS, "args.out", " unless `--out` gives another; make that default absolute by `.absolute()`"),
    *((OPTIONS, f"args.{name}", "") for name in ("full", "none", "root", "twice", "set", "unknown")),
    (FLAGS, "FLAGS.workdir", f" unless `--workdir` gives another; {STRING}"),
    (FLAGS, 'os.path.join(FLAGS.late, "a")', f" unless `--late` gives another; {STRING}"),
    (FLAGS, "DIR.value", f" unless `--dir` gives another; {STRING}"),
    *((FLAGS, name, "") for name in ("FLAGS.none", "FLAGS.root", "FLAGS.unknown", "DIR.name")),
]


@pytest.mark.parametrize(("head", "path", "said"), DEFAULTS, ids=[path for _, path, _ in DEFAULTS])
def test_the_default_of_a_flag_is_a_note(head: str, path: str, said: str) -> None:
    assert told(f"{HEAD}{head}saver.save({path}, state)\n") == ([], [said] if said else [])


def test_options_are_seen_in_a_function_that_takes_them() -> None:
    body = "    saver.save(args.ckpt_dir, state)\n"
    head = HEAD + OPTIONS
    said = [f" unless `--ckpt-dir` gives another; {STRING}"]
    assert told(f"{head}def main(args):\n{body}") == ([], said)
    assert told(f"{head}def main(args: argparse.Namespace):\n{body}") == ([], said)
    assert told(f"{head}class A:\n  def main(self, args):\n    self.ckpt_dir = args.ckpt_dir\n{body}") == ([], said)
    assert told(f"{head}def main(args: Config):\n{body}") == ([], [])
    assert told(f"{head}def main(config):\n    saver.save(config.ckpt_dir, state)\n") == ([], [])


def test_the_default_of_a_parameter_is_a_note() -> None:
    body = "    saver.save(where, state)\n"
    said = [f" unless a caller passes another `where`; {STRING}"]
    for parameters in ('state, where="ckpt"', 'state, *, where="ckpt"', 'where="ckpt", /', 'a, where="ckpt", b=1'):
        assert told(f"{HEAD}def save({parameters}):\n{body}") == ([], said)
    for parameters in ("state, where", 'where=None, a="b"', 'where="/tmp"', '*where, a="b"'):
        assert told(f"{HEAD}def save({parameters}):\n{body}") == ([], [])
    assert told(f'{HEAD}def save(where="a"):\n    where = os.path.abspath(where)\n{body}') == ([], [])


def test_the_flag_of_flax_decides() -> None:
    call = 'checkpoints.save_checkpoint("ckpt", state, 0)'
    by_orbax = 'checkpoints.save_checkpoint("ckpt", state, 0, orbax_checkpointer=saver)'
    head = (
        HEAD + 'import flax\n# flax_use_orbax_checkpointing\nflax.config.update("flax_use_orbax_checkpointing", {})\n'
    )
    assert refused([call, by_orbax], head.format(False)) == [by_orbax]
    assert refused([call], head.format("name")) == []
    assert refused([call], head.format(True)) == [call]


def test_a_checkpointer_that_is_not_seen_makes_it_a_note() -> None:
    text = HEAD + 'checkpoints.save_checkpoint("ckpt", state, 0, orbax_checkpointer=one)\none.save("ckpt", state)\n'
    assert told(text) == ([], ["; if that checkpointer writes OCDBT, pass `os.path.abspath(...)` of it"])


def test_another_format_in_the_module_makes_reading_a_note() -> None:
    text = HEAD + 'old = ocp.PyTreeCheckpointer(use_ocdbt=False)\nold.save("a", state)\nsaver.restore("a")\n'
    assert told(text) == ([], ["; if it is in OCDBT, pass `os.path.abspath(...)` of it"])
    text = HEAD + 'layout = ocp.v1.options.CheckpointLayout.SAFETENSORS\nocp.v1.load("a")\n'
    assert told(text) == ([], ["; if Orbax wrote the checkpoint, pass `os.path.abspath(...)` of it"])


def test_a_checkpointer_is_followed() -> None:
    text = HEAD + (
        "class Saver:\n    def __init__(self):\n"
        "        self.arrays = ocp.Checkpointer(ocp.StandardCheckpointHandler())\n"
        "        self.json = ocp.Checkpointer(ocp.JsonCheckpointHandler())\n"
        '    def save(self, state):\n        self.arrays.save("a", state)\n        self.json.save("a", state)\n'
        'handler = ocp.PyTreeCheckpointHandler()\nocp.AsyncCheckpointer(handler).save("a", state)\n'
    )
    lines = text.splitlines()
    assert [lines[line - 1].strip() for line in told(text)[0]] == [
        'self.arrays.save("a", state)',
        'ocp.AsyncCheckpointer(handler).save("a", state)',
    ]


def test_attributes_of_self_are_followed() -> None:
    text = """\
import os
import orbax.checkpoint as ocp


class Trainer:
    FOLDER = "of the class"

    def __init__(self, folder="runs", name=None):
        self.folder = folder
        self.fixed = os.path.join("runs", "a")
        self.name = name
        self.set_twice = "a"
        self.set_twice = "/b"
        self.saver = ocp.PyTreeCheckpointer()

    def save(self, state, other):
        self.saver.save(self.fixed, state)
        self.saver.save(self.FOLDER, state)
        self.saver.save(self.folder, state)
        self.saver.save(self.name, state)
        self.saver.save(self.set_twice, state)
        self.saver.save(other.fixed, state)
        self = other
        self.saver.save(self.fixed, state)
"""
    lines, notes = told(text.replace("        self = other\n        self.saver.save(self.fixed, state)\n", ""))
    assert lines == [17, 18]
    assert notes == [
        " unless a caller passes another `folder`; make that default absolute by `os.path.abspath(...)`",
        " unless it begins with `/b`; pass `os.path.abspath(...)` of it",
    ]
    # Another object than `self` is not followed.
    assert told(text) == (lines, notes)


def test_constants_of_other_modules_are_followed() -> None:
    files = {
        "config.py": b'import os\n\nFOLDER = os.path.join("runs", "a")\nHOME = "/runs"\nUNKNOWN = input()\n',
        "package/__init__.py": b"from config import FOLDER\n",
        "a.py": b"""\
import config
import orbax.checkpoint as ocp
from config import FOLDER, HOME, UNKNOWN
from package import FOLDER as PASSED_ON

saver = ocp.PyTreeCheckpointer()
saver.save(FOLDER, 1)
saver.save(config.FOLDER, 1)
saver.save(PASSED_ON + "/b", 1)
saver.save(HOME, 1)
saver.save(UNKNOWN, 1)
""",
    }
    placed = {f"./{path}": data for path, data in files.items()}
    results = modernize_project(source_files(files), REGISTRY, load=placed.get)
    (result,) = (each for each in results if each.path == "a.py")
    assert [item.line for item in result.refusals] == [7, 8, 9]
