"""Where people work: the hooks, run by pre-commit, and the GitHub Action, its scripts run against a fake API."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from command import HINTED, OLD, PIPELINE, REFUSED, put

yaml = pytest.importorskip("yaml")
pytest.importorskip("pre_commit")
pytest.importorskip("check_jsonschema")
ROOT = Path(__file__).resolve().parents[1]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
HOOKS = {hook["id"]: hook for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())}
TRAP = "open('ran', 'w')\n"


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=tests", "-c", "user.email=tests@example.com", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def commit(folder: Path, **files: str) -> str:
    for name, text in files.items():
        put(str(folder / f"{name}.py"), text)
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "change")
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    if shutil.which("git") is None:
        pytest.skip("git is not there")
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q", ".")
    return folder


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A folder with `mmrewrite/bin`, as the action's first step makes it, of this checkout."""
    for name, arguments in (("mmrewrite", "-P -m mmrewrite"), ("python", "")):
        file = put(str(tmp_path / "tools/mmrewrite/bin" / name), f'#!/bin/sh\nexec {sys.executable} {arguments} "$@"\n')
        file.chmod(0o755)
    return tmp_path / "tools"


def environment(tools: Path, **more: str) -> dict[str, str]:
    path = os.pathsep.join([str(tools / "mmrewrite/bin"), os.environ["PATH"]])
    python = os.pathsep.join(str(ROOT / part) for part in ("", "codemods", "runtime"))
    return os.environ | {"PATH": path, "PYTHONPATH": python, "RUNNER_TEMP": str(tools), **more}


# pre-commit


def hook_run(folder: Path, tools: Path, name: str) -> subprocess.CompletedProcess[str]:
    """The hook under pre-commit, with `mmrewrite` from the path in place of an environment of its own."""
    hook = HOOKS[name] | {"language": "system"}
    config = {"repos": [{"repo": "local", "hooks": [hook]}]}
    put(str(folder / ".pre-commit-config.yaml"), yaml.safe_dump(config))
    git(folder, "add", "-A")
    command = [sys.executable, "-m", "pre_commit", "run"]
    settings = environment(tools, PRE_COMMIT_HOME=str(tools / "pre-commit"))
    return subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True, check=False)


def test_the_manifest_of_hooks_is_valid() -> None:
    command = [sys.executable, "-m", "pre_commit", "validate-manifest", str(ROOT / ".pre-commit-hooks.yaml")]
    subprocess.run(command, check=True)
    page = (ROOT / "docs/ci.md").read_text()
    assert all(f"`{name}`" in page for name in HOOKS)


@pytest.mark.parametrize(
    ("name", "text", "passes", "after"),
    [
        pytest.param("mmrewrite", HINTED, True, HINTED, marks=pytest.mark.slow),
        ("mmrewrite", REFUSED, False, REFUSED),
        ("mmrewrite-check", HINTED, False, HINTED),
        pytest.param("mmrewrite-check", "x = 1\n", True, "x = 1\n", marks=pytest.mark.slow),
        ("mmrewrite-apply", HINTED, False, None),
        ("mmrewrite-modernize", OLD, False, OLD.replace("tree_map", "tree.map")),
    ],
)
def test_a_hook(repository: Path, tools: Path, name: str, text: str, passes: bool, after: str | None) -> None:
    file = put(str(repository / "program.py"), text)
    done = hook_run(repository, tools, name)
    assert (done.returncode == 0) is passes, done.stdout + done.stderr
    if after is None:
        assert "mm.task(" in file.read_text() and "files were modified by this hook" in done.stdout
        assert hook_run(repository, tools, name).returncode == 0
    else:
        assert file.read_text() == after


@pytest.mark.slow
def test_the_hooks_install_from_a_clone(repository: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", str(ROOT), "clone")
    commit(repository, program=REFUSED)
    command = [sys.executable, "-m", "pre_commit", "try-repo", str(tmp_path / "clone"), "mmrewrite", "--all-files"]
    settings = os.environ | {"PRE_COMMIT_HOME": str(tmp_path / "home")}
    settings.pop("PYTHONPATH", None)
    done = subprocess.run(command, cwd=repository, env=settings, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "more than one call could be the task" in done.stdout, done.stdout + done.stderr


# The action


class Api:
    """GitHub's API as far as comments go."""

    def __init__(self) -> None:
        self.comments: list[dict[str, Any]] = []
        self.requests: list[str] = []
        self.status = 200
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                page = int(re.findall(r"[?&]page=(\d+)", self.path)[0]) if "page=" in self.path else 1
                shown = api.comments[100 * (page - 1) : 100 * page]
                self.answer(403 if self.path == "/user" else api.status, shown)

            def do_POST(self) -> None:
                comment = {"id": len(api.comments) + 1, "user": {"type": "Bot", "login": "bot"}, **self.body()}
                if api.status == 200:
                    api.comments.append(comment)
                self.answer(api.status, comment)

            def do_PATCH(self) -> None:
                (comment,) = [each for each in api.comments if self.path.endswith(f"/{each['id']}")]
                comment.update(self.body())
                self.answer(api.status, comment)

            def body(self) -> dict[str, Any]:
                parsed: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                return parsed

            def answer(self, status: int, value: object) -> None:
                assert self.headers["Authorization"] == "Bearer secret"
                api.requests.append(f"{self.command} {self.path.split('?')[0]}")
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(value).encode())

            def log_message(self, *arguments: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture
def api() -> Iterator[Api]:
    api = Api()
    api.thread.start()
    yield api
    api.server.shutdown()
    api.thread.join()
    api.server.server_close()


def step(
    name: str, folder: Path, tools: Path, outputs: dict[str, str] | None = None, api: Api | None = None, **inputs: str
) -> tuple[subprocess.CompletedProcess[str], dict[str, str]]:
    """A step of the action, as a runner runs it; and its outputs."""
    (found,) = [each for each in ACTION["runs"]["steps"] if each["name"] == name]
    values = {"github.action_path": str(ROOT), "github.event.pull_request.number": "7"}
    values |= {f"inputs.{key}": str(value["default"]) for key, value in ACTION["inputs"].items()}
    values |= {"inputs.since": "", "inputs.token": "secret"}
    values |= {f"inputs.{key.replace('_', '-')}": value for key, value in inputs.items()}
    values |= {f"steps.report.outputs.{key}": value for key, value in (outputs or {}).items()}
    own = {
        key: re.sub(r"\$\{\{ (\S+) \}\}", lambda match: values[match[1]], text) for key, text in found["env"].items()
    }
    files = {key: str(tools / key) for key in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    Path(files["GITHUB_OUTPUT"]).write_text("")
    more = {"GITHUB_REPOSITORY": "owner/name", "GITHUB_API_URL": api.address if api else "http://127.0.0.1:1"}
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", found["run"]],
        cwd=folder,
        env=environment(tools, **more, **files, **own),
        capture_output=True,
        text=True,
        check=False,
    )
    written = Path(files["GITHUB_OUTPUT"]).read_text().splitlines()
    return done, dict(line.split("=", 1) for line in written)


def test_the_action_is_valid_and_its_page_lists_its_inputs() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema"]
    subprocess.run([*command, "vendor.github-actions", str(ROOT / "action.yml")], check=True, capture_output=True)
    page = (ROOT / "docs/ci.md").read_text()
    assert all(f"`{name}`" in page for name in (*ACTION["inputs"], *ACTION["outputs"]))
    # Nothing that somebody else writes gets into a script but by the environment.
    assert not [each for each in ACTION["runs"]["steps"] if "${{" in each["run"]]


def test_the_workflows_of_the_page_are_valid(tmp_path: Path) -> None:
    page = (ROOT / "docs/ci.md").read_text()
    blocks = re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    kinds = {"jobs:": "vendor.github-workflows", "repos:": None}
    for block in blocks:
        (kind,) = [kind for key, kind in kinds.items() if re.search(rf"^{key}", block, re.MULTILINE)]
        file = put(str(tmp_path / "block.yaml"), block)
        if kind is None:
            subprocess.run([sys.executable, "-m", "pre_commit", "validate-config", str(file)], check=True)
            assert {hook["id"] for repo in yaml.safe_load(block)["repos"] for hook in repo["hooks"]} <= HOOKS.keys()
        else:
            command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", kind, str(file)]
            subprocess.run(command, check=True, capture_output=True)
            steps = [each for job in yaml.safe_load(block)["jobs"].values() for each in job["steps"]]
            assert all(
                each.get("with", {}).keys() <= ACTION["inputs"].keys() for each in steps if "mmrewrite@" in str(each)
            )
    assert len(blocks) >= 2


@pytest.mark.slow
def test_the_action_installs_itself(repository: Path, tmp_path: Path) -> None:
    runner = tmp_path / "runner"
    runner.mkdir()
    done, _ = step("Install mmrewrite", repository, runner, python=sys.executable)
    assert done.returncode == 0, done.stderr
    commit(repository, program=HINTED)
    settings = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(runner / "mmrewrite/bin/mmrewrite"), "check", "--no-cache"]
    checked = subprocess.run(command, cwd=repository, env=settings, capture_output=True, text=True, check=False)
    assert checked.returncode == 1 and "+y = mm.task(" in checked.stdout, checked.stderr


def test_one_comment_that_is_brought_up_to_date(repository: Path, tools: Path, api: Api) -> None:
    base = commit(repository, old=REFUSED, click=TRAP, json=TRAP, sitecustomize=TRAP)
    commit(repository, train=PIPELINE)
    api.comments += [
        {"id": number, "user": {"type": "User", "login": "x"}, "body": "hello"} for number in range(900, 1001)
    ]
    # Somebody quotes ours.
    api.comments[0]["body"] = "<!-- mmrewrite: the comment that its action brings up to date -->"

    done, outputs = step("Report", repository, tools, since=base, comment="true")
    assert done.returncode == 0, done.stdout + done.stderr
    assert outputs["status"] == "0" and outputs["empty"] == "false"
    assert "::notice file=train.py,line=" in done.stdout
    assert "old.py" not in Path(outputs["report"]).read_text()
    assert "### mmrewrite: 4 hints" in (tools / "GITHUB_STEP_SUMMARY").read_text()
    said, _ = step("Comment", repository, tools, outputs, api)
    assert said.returncode == 0, said.stderr
    assert "mm.MultiMesh" in api.comments[-1]["body"] and len(api.comments) == 102

    # The next push: the same comment.
    commit(repository, train=PIPELINE.replace("stage=2", "stage=4"))
    _, outputs = step("Report", repository, tools, since=base)
    said, _ = step("Comment", repository, tools, outputs, api)
    assert "up to date" in said.stdout and len(api.comments) == 102
    assert "stage=4" in api.comments[-1]["body"] or "(4,)" in api.comments[-1]["body"]
    assert not (repository / "ran").exists()


def test_nothing_to_say_is_no_comment(repository: Path, tools: Path, api: Api) -> None:
    base = commit(repository, old=REFUSED)
    commit(repository, plain="x = 1\n")
    done, outputs = step("Report", repository, tools, since=base)
    assert done.returncode == 0 and outputs["empty"] == "true"
    step("Comment", repository, tools, outputs, api)
    assert api.comments == []


@pytest.mark.parametrize(
    ("text", "statuses"),
    [
        (HINTED, {"refusals": 0, "changes": 1}),
        pytest.param(REFUSED, {"errors": 0, "refusals": 1}, marks=pytest.mark.slow),
        ("y = 1  # mm: tsk(stage=0)\n", {"never": 0, "errors": 2}),
    ],
)
def test_what_fails_the_step(repository: Path, tools: Path, text: str, statuses: dict[str, int]) -> None:
    commit(repository, program=text)
    for fail_on, status in statuses.items():
        done, _ = step("Report", repository, tools, fail_on=fail_on)
        assert done.returncode == status, (fail_on, done.stdout, done.stderr)
    # A file of the pull request cannot speak to the runner: what quotes it stands where commands are off.
    for quoted in re.findall(r"^::stop-commands::(\w+)\n(.*)\n::\1::$", done.stdout, re.MULTILINE | re.DOTALL):
        assert len(quoted[0]) == 32
    rest = re.sub(r"^::stop-commands::(\w+)\n.*\n::\1::$", "", done.stdout, flags=re.MULTILINE | re.DOTALL)
    assert all(line.startswith(("::notice ", "::warning ", "::error ")) for line in rest.split("\n") if line)


def test_wrong_inputs_and_a_token_that_may_not_write(repository: Path, tools: Path, api: Api) -> None:
    commit(repository, program=HINTED)
    assert step("Report", repository, tools, fail_on="warnings")[0].returncode == 2
    assert step("Report", repository, tools, since="--output=x")[0].returncode == 2
    done, outputs = step("Report", repository, tools, since="nowhere")
    assert done.returncode == 2 and "report" not in outputs
    assert "git knows no such revision" in done.stdout
    # A path is never an option, nor a command.
    done, _ = step("Report", repository, tools, paths="--config=x\n$(touch ran)\n")
    assert done.returncode == 2 and not (repository / "ran").exists()
    _, outputs = step("Report", repository, tools)
    api.status = 403
    said, _ = step("Comment", repository, tools, outputs, api)
    assert said.returncode == 0 and "::warning title=mmrewrite::the comment was not written" in said.stdout
    api.status = 500
    assert step("Comment", repository, tools, outputs, api)[0].returncode == 1
