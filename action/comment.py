"""The one comment of the GitHub Action on a pull request: written once, then brought up to date. See action.yml.

    python action/comment.py REPORT

The environment has `GH_TOKEN`, `GITHUB_REPOSITORY`, `NUMBER` (of the pull request) and `EMPTY`, which is `true` when
there is nothing to say; then a comment is brought up to date, and none is written.
"""

from __future__ import annotations

import json
import os
import re
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

# Tells our comment from others: it begins with this, and who comments now wrote it.
MARK = "<!-- mmrewrite: the comment that its action brings up to date -->"
_SECONDS = 30
_PAGES = 30


def call(method: str, path: str, body: dict[str, str] | None = None) -> Any:
    """One request to GitHub's API, and its answer."""
    request = urllib.request.Request(
        f"{os.environ.get('GITHUB_API_URL', 'https://api.github.com')}{path}",
        data=None if body is None else json.dumps(body).encode(),
        method=method,
        headers={
            "Accept": "application/vnd.github+json",
            "Authorization": f"Bearer {os.environ['GH_TOKEN']}",
            "X-GitHub-Api-Version": "2022-11-28",
            "User-Agent": "mmrewrite",
        },
    )
    with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
        return json.load(answer)


def own_login() -> str | None:
    """The user of the token, None for the token of a workflow, which is a bot's."""
    try:
        return str(call("GET", "/user")["login"])
    except urllib.error.HTTPError:
        return None


def own_comment(repository: str, number: str) -> int | None:
    """The comment of an earlier run, None if there is none."""
    login = own_login()
    for page in range(1, _PAGES + 1):
        comments = call("GET", f"/repos/{repository}/issues/{number}/comments?per_page=100&page={page}")
        for comment in comments:
            # Anybody may quote the mark.
            user = comment["user"]
            is_own = user["type"] == "Bot" if login is None else user["login"] == login
            if is_own and comment["body"].startswith(MARK):
                return int(comment["id"])
        if len(comments) < 100:
            return None
    return None


def main() -> int:
    repository, number = os.environ["GITHUB_REPOSITORY"], os.environ["NUMBER"]
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repository) or not number.isdigit():
        print("GITHUB_REPOSITORY and NUMBER must name a pull request", file=sys.stderr)
        return 2
    body = {"body": f"{MARK}\n{Path(sys.argv[1]).read_text(encoding='utf-8')}"}
    try:
        known = own_comment(repository, number)
        if known is not None:
            call("PATCH", f"/repos/{repository}/issues/comments/{known}", body)
            print(f"brought comment {known} up to date")
        elif os.environ.get("EMPTY") == "true":
            print("nothing to comment on")
        else:
            written = call("POST", f"/repos/{repository}/issues/{number}/comments", body)
            print(f"wrote comment {written['id']}")
    except urllib.error.HTTPError as error:
        # The token of a pull request from a fork reads only. The report is in the job's summary, too.
        if error.code in (401, 403, 404):
            print(
                f"::warning title=mmrewrite::the comment was not written (HTTP {error.code}): the token may not write "
                "to the pull request. Give the job `pull-requests: write`; for a pull request from a fork there is no "
                "such token, and the job's summary has the report."
            )
            return 0
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
