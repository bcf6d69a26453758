"""The documentation: its links lead somewhere, and what it shows is what happens."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from scripts import load_script

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
    *sorted((ROOT / "benchmarks").rglob("*.md")),
]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_resolve(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = [target for target in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in target]
    missing = [target for target in targets if not (page.parent / target.split("#")[0]).exists()]
    assert not missing


def test_the_set_ups_of_editors_parse() -> None:
    page = (ROOT / "docs" / "editors.md").read_text(encoding="utf-8")
    (settings,), (languages,) = blocks(page, "json"), blocks(page, "toml")
    assert json.loads(settings)["glspc.server.commandArguments"] == ["lsp"]
    parsed = tomllib.loads(languages)
    assert parsed["language-server"]["mmrewrite"] == {"command": "mmrewrite", "args": ["lsp"]}
    for language in ("lua", "elisp"):
        (block,) = blocks(page, language)
        assert re.search(r'"mmrewrite",? "lsp"', block)
        assert is_balanced(re.sub(r'"[^"]*"', "", block))


def is_balanced(text: str) -> bool:
    """Whether every bracket is closed by its like."""
    while text != (text := re.sub(r"\([^][(){}]*\)|\[[^][(){}]*\]|\{[^][(){}]*\}", "", text)):
        pass
    return not re.search(r"[][(){}]", text)


def test_the_readme_has_the_two_commands_that_ci_runs() -> None:
    commands = [block.strip() for block in blocks(README, "sh")]
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    patterns = re.findall(r"grep -E '([^']+)' README\.md", script)
    assert len(commands) == len(patterns) == 2
    for pattern in patterns:
        assert len([command for command in commands if re.search(pattern, command)]) == 1
    assert all("\n" not in command for command in commands)
    # The demo installs what it needs, and not what developers need.
    demo, tests = (command.split(" && ") for command in commands)
    assert "--require-hashes -r requirements-demo.lock" in demo[1] and "-r requirements.lock" in tests[1]
    assert (demo[0], demo[2]) == (tests[0], tests[2])


def test_the_readme_is_read_in_five_minutes() -> None:
    assert len(README.split()) <= 1200


def test_the_readme_shows_the_hints_of_the_example() -> None:
    sources = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "examples" / "gpt").glob("*.py"))]
    hints = [match.strip() for source in sources for match in re.findall(r"(?m)# mm: .*$", source)]
    assert sorted(re.findall(r"`(# mm: [^`]+)`", README)) == sorted(hints)


def test_the_readme_shows_what_diff_prints() -> None:
    command = [sys.executable, "-m", "mmrewrite", "diff", "examples/gpt"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    (shown,) = blocks(README, "diff")
    changed = [line for line in printed if re.match(r"[+-](?!\+\+ |-- )", line) and line[1:].strip()]
    assert [line for line in shown.splitlines() if re.match(r"[+-](?!\+\+ |-- )", line)] == changed


# Generated ones are references, not to be read through.
GENERATED = {"codemods.md", "reference.md", "sharding.md"}
LIMITS = {"runtime.md": 4000, "numbers.md": 1500}


def test_pages_are_short_enough_to_be_read() -> None:
    long = {
        page.name: words
        for page in (ROOT / "docs").glob("*.md")
        if page.name not in GENERATED
        and (words := len(page.read_text(encoding="utf-8").split())) > LIMITS.get(page.name, 6000)
    }
    assert long == {}


@pytest.mark.parametrize("name", ["make_codemods", "make_reference", "make_sharding"])
def test_pages_that_are_made_are_up_to_date(name) -> None:
    if name == "make_reference":
        pytest.importorskip("griffe")
    maker = load_script(f"tools/{name}.py")
    assert maker.PAGE.read_text(encoding="utf-8") == maker.page(), f"run: python tools/{name}.py"


ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PACKAGES = ("mmrewrite", "codemods/mmcodemods", "codemods/mmmodernize", "runtime/mmruntime")


def test_every_path_in_the_architecture_exists() -> None:
    """Links are held by `test_links_resolve`; these are the paths in code spans, globs allowed."""
    spans = re.findall(r"`([\w.*<>-]+(?:/[\w.*<>-]+)+/?)`", ARCHITECTURE)
    paths = [re.sub(r"<\w+>", "*", span) for span in spans]
    assert paths
    assert [path for path in paths if not list(ROOT.glob(path.rstrip("/")))] == []


def test_the_architecture_is_a_page_that_leads_to_one_place() -> None:
    assert len(ARCHITECTURE.split()) <= 1200
    table = ARCHITECTURE.partition("## Where do I change")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert 12 <= len(rows) <= 25
    assert [row for row in rows if row.count("](") != 1] == []


def test_every_folder_says_what_it_is_and_is_small() -> None:
    folders = {path.parent for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    assert [folder for folder in folders if not module_docstring(folder / "__init__.py")] == []
    assert [folder for folder in folders if len(list(folder.glob("*.py"))) > 20] == []


def test_docstrings_of_folders_name_what_is_there() -> None:
    """Each name in code spans is a file of the folder or of another one, or a name that some file has."""
    known = {path.stem for folder in (*PACKAGES, "tools") for path in (ROOT / folder).rglob("*")}
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("__init__.py")):
        spans = re.findall(r"`(_?[a-z]+(?:_[a-z]+)+)`", module_docstring(path))
        spans += re.findall(r"`(?:[a-z_]+/)*([a-z_]+)\.py`", module_docstring(path))
        assert [span for span in spans if span not in known] == [], path


def module_docstring(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


@pytest.mark.parametrize("track", ["linen", "nnx", "equinox"])
def test_ci_runs_the_tutorial_as_it_is_printed(track: str) -> None:
    """`.ci/run` runs one track and `.ci/nightly` all: each line of the page's blocks, and the program that it shows."""
    script = load_script("tools/run_tutorial.py")
    hinted = (ROOT / "examples" / "tutorial" / track / "train.py").read_text(encoding="utf-8")
    assert script.program(track) == load_script("tools/make_pages.py").HINT.sub("", hinted)
    printed = [line for block in blocks(script.PAGE.read_text(encoding="utf-8"), "sh") for line in block.splitlines()]
    run = script.commands(track)
    left = [line for line in printed if line not in run]
    assert [line for line in run if line in printed] == [line for line in printed if line in run]
    assert len(left) == 1 and left[0].startswith("pip install") and ("equinox" in left[0]) == (track != "equinox")
    assert {"mmrewrite diff", "mmrewrite plan", "mmrewrite apply", script.RUN} <= set(run)
    assert "tools/run_tutorial.py nnx" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_the_notebook_is_that_of_its_script_and_was_run() -> None:
    """`.ci/run` runs it again, and compares what it prints."""
    script = load_script("tools/make_notebook.py")
    cells = json.loads(script.NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert tuple("".join(cell["source"]) for cell in cells) == script.cells(), "run: python tools/make_notebook.py"
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == [*range(1, len(code) + 1)]
    assert {output["output_type"] for cell in code for output in cell["outputs"]} == {"stream"}
    assert "tools/make_notebook.py --check" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_the_check_of_prose_finds_what_is_planted() -> None:
    """`.ci/run` runs it over pages and help texts, with proselint."""
    script = load_script("tools/check_prose.py")
    text = "A micro-batch.\n\n`micro-batch` and\n\n```\nmicro-batch\n```\n\nIts exit code.\n"
    found = [(1, "say `microbatch`, not `micro-batch`"), (9, "say `exit status`, not `exit code`")]
    assert [*script.words_found(script.prose(text))] == found
    assert [*script.long_sentences("one\n\n- " + "word " * 51 + "\n- word.")] == [(3, f"52 words: -{' word' * 7} ...")]
    assert [*script.long_sentences("| " + "word " * 99 + "|\n\n" + "word " * 50 + "\nword. " + "word " * 40)] == [
        (3, f"51 words:{' word' * 8} ...")
    ]
    names = {name for name, _ in script.texts()}
    assert {"README.md", "docs/tutorial.md", "mmrewrite --help", "mmrewrite verify --help"} <= names
    for word in script.RULES["words"]:
        assert [*script.words_found(word)] == []
    assert "tools/check_prose.py" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
