"""The HTML pages in a real browser: nothing is loaded or run, and all can be read and reached by everybody."""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from command import OLD, PIPELINE, REFUSED, put, run

from mmrewrite.cli.reports import render
from mmrewrite.cli.reports._evidence import CheckedArrays
from mmrewrite.cli.reports._html_page import page as page_of
from mmrewrite.cli.reports._html_page import plan_table, table
from mmrewrite.plan.sections import PlanTable
from mmrewrite.project.verify_entries import Entry
from mmrewrite.verify.programs import Checked
from mmrewrite.verify.verify import Verified

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page
else:
    pytest.importorskip("playwright.sync_api")

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine (Debian's package of that name)")

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]

EVIL = "<img src=x onerror=alert(1)>"
HOSTILE = f"""\
# mm: mesh(stage=2)
def f(x):
    return "</style><script>alert(2)</script>"


y = f("{EVIL}")  # mm: task(stage=0)
z = f(1) + f("</title><svg onload=alert(3)>")  # mm: task(stage=1)
"""
WRONG = "y = f(1)  # mm: tsak(stage=0)\n"
LEFT = "# mm: off\ny = f(1)  # mm: task(stage=0)\n"
LONG = f"def f(x):\n    return x\n\n\ny = f('{'long' * 60}')  # mm: task(stage=0)\n"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages by name, made once: a review with all that it can have, hostile ones, and a plan."""
    folder = tmp_path_factory.mktemp("pages")
    written = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, text in {
            "step.py": PIPELINE,
            "refused.py": REFUSED,
            "wrong.py": WRONG,
            "left.py": LEFT,
            "long/line.py": LONG,
            "old.py": OLD,
            f"evil/{EVIL.replace('/', '')}.py": HOSTILE,
        }.items():
            put(name, text)
        put("evidence.json", json.dumps(evidence()))
        for name, arguments in {
            "review": ["diff", ".", "--evidence", "evidence.json"],
            "verified": ["diff", "step.py", "--evidence", "evidence.json"],
            "modernize": ["modernize", "--diff", "old.py"],
            "plan": ["plan", "step.py"],
        }.items():
            written[name] = put(f"{name}.html", run(*arguments, "--format", "html").stdout)
        written["verify"] = put("verify.html", str(render("verify", "html", verified())))
        return {name: path.resolve() for name, path in written.items()}


def verified() -> Verified:
    """A run of `verify` with a verdict of each kind."""
    row = evidence()["checks"][0]["arrays"][0]
    rows = (row, row | {"rounding": True, "float64": 1e-12}, row | {"problem": f"{EVIL} became 0"})
    entry = Entry("step:step", f"step:{EVIL}", "step.py:3")
    checks = [Checked(entry, "different", "8 virtual devices", rows, (EVIL,), reference="microbatched")]
    checks += [Checked(entry, "broken", "", problem=EVIL, details=HOSTILE), Checked(entry, "equal", "", rows[:2])]
    return Verified(tuple(checks), "0" * 64, (), (EVIL,), ("step.py:3",))


def evidence() -> dict[str, Any]:
    """What `verify` prints about `step.py`, with words that are no friends of pages."""
    rows = [
        {
            "role": "result",
            "name": f"result['{EVIL}']",
            "shape": [4, 4],
            "type": "float32",
            "absolute": 1e-7,
            "relative": None,
            "where": "device 0",
            "problem": None,
        }
    ]
    check = {
        "entry": "step:step",
        "args": "step:</details><script>alert(4)</script>",
        "named_by": "--entry",
        "status": "equal",
        "where": "8 virtual devices",
        "arrays": rows,
        "notes": [],
        "problem": None,
        "traceback": None,
    }
    return {
        "version": 1,
        "command": "verify",
        "passed": True,
        "patch_sha256": hashlib.sha256(run("diff", "step.py").stdout_bytes).hexdigest(),
        "files": [],
        "checks": [check],
        "not_covered": [EVIL],
        "unreached": ["step.py:3", "step.py:7"],
    }


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


class OpenPage:
    """A page in the browser, with what it said, asked for and opened."""

    def __init__(self, browser: Browser, path: Path, **options: Any) -> None:
        self.events: list[str] = []
        self._context = browser.new_context(**options)
        self.page: Page = self._context.new_page()
        self.page.on("console", lambda message: self.events.append(f"console: {message.text}"))
        self.page.on("pageerror", lambda error: self.events.append(f"error: {error}"))
        self.page.on("dialog", lambda dialog: (self.events.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        url = path.as_uri()
        self.page.on(
            "request", lambda request: None if request.url == url else self.events.append(f"request: {request.url}")
        )
        self.page.goto(url)

    def __enter__(self) -> Page:
        return self.page

    def __exit__(self, *error: object) -> None:
        self._context.close()
        if error[0] is None:
            assert self.events == []


NAMES = ("review", "verified", "modernize", "plan", "verify")
NARROW, WIDE = {"width": 360, "height": 740}, {"width": 1280, "height": 900}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_says_nothing_loads_nothing_and_can_be_read(
    browser: Browser, pages: dict[str, Path], name: str, scheme: str
) -> None:
    with OpenPage(browser, pages[name], color_scheme=scheme, viewport=WIDE) as page:
        page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
        found = page.evaluate(CONTRAST)
        assert found["texts"] > 20
        assert [each for each in found["all"] if each["ratio"] < 4.5] == []
        assert (
            page.evaluate("getComputedStyle(document.body).backgroundColor")
            == {
                "light": "rgb(255, 255, 255)",
                "dark": "rgb(13, 17, 23)",
            }[scheme]
        )


# Of each visible text outside of pictures: its contrast with what is behind it, by WCAG's formula.
CONTRAST = """() => {
  const parts = text => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = node => {
    for (; node; node = node.parentElement) {
      const color = parts(getComputedStyle(node).backgroundColor);
      if (color.length === 3 || color[3] > 0) return color;
    }
    return [255, 255, 255];
  };
  const all = new Map();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let texts = 0;
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || node.closest('svg') || !node.checkVisibility()) continue;
    texts += 1;
    // Line numbers and signs are written by style, before the text of an element or of those that it is in.
    const kinds = [[node, getComputedStyle(node).color]];
    for (let each = node; each; each = each.parentElement)
      if (getComputedStyle(each, '::before').content !== 'none')
        kinds.push([each, getComputedStyle(each, '::before').color]);
    for (const [each, color] of kinds) {
      const [a, b] = [light(parts(color)), light(ground(each))].sort((x, y) => y - x);
      const ratio = (a + 0.05) / (b + 0.05);
      all.set(color + ground(each), {text: walker.currentNode.data.trim().slice(0, 40), color, ratio});
    }
  }
  return {texts, all: [...all.values()]};
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_in_pictures_can_be_read(browser: Browser, pages: dict[str, Path], scheme: str) -> None:
    script = CONTRAST.replace("node.closest('svg')", "!node.closest('svg text.ink, svg text.quiet')")
    script = script.replace("getComputedStyle(node).color", "getComputedStyle(node).fill")
    script = script.replace("ground(each)", "paper(each)")
    script = script.replace(
        "const all =",
        "const paper = node => parts(getComputedStyle(node.closest('svg').querySelector('.paper')).fill); const all =",
    )
    with OpenPage(browser, pages["plan"], color_scheme=scheme, viewport=WIDE) as page:
        found = page.evaluate(script)
        assert found["texts"] > 10
        assert [each for each in found["all"] if each["ratio"] < 4.5] == []


@pytest.mark.parametrize("name", NAMES)
def test_a_phone_scrolls_in_one_direction(browser: Browser, pages: dict[str, Path], name: str) -> None:
    with OpenPage(browser, pages[name], viewport=NARROW) as page:
        page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
        assert page.evaluate("document.documentElement.scrollWidth") == 360
        # What is wider scrolls by itself, and can be reached by keyboard to do so.
        wide = page.evaluate(
            """() => [...document.querySelectorAll('main *')]
              .filter(node => node.scrollWidth > node.clientWidth + 1 && getComputedStyle(node).overflowX === 'auto')
              .filter(node => node.tabIndex !== 0 || !node.getAttribute('aria-label')).map(node => node.outerHTML)"""
        )
        assert wide == []
        # Tables do not scroll: their cells stand below each other, each with its head.
        page.set_viewport_size({"width": 320, "height": 740})
        assert page.evaluate("document.documentElement.scrollWidth") == 320
        cut = "node => node.scrollWidth > node.clientWidth + 1"
        assert page.evaluate(f"[...document.querySelectorAll('.wide:has(> table)')].filter({cut}).length") == 0
        for cell in page.locator(".wide > table:not(.mesh) td").all()[:9]:
            shown = cell.evaluate("node => getComputedStyle(node, '::before').content")
            assert shown.startswith(f'"{cell.get_attribute("data-head")}: "')


def test_tables_fit_the_paper_and_leave_out_what_says_nothing(browser: Browser, tmp_path: Path) -> None:
    layer = "state.params['blocks_3']['LayerNorm_0']['scale']"
    row = (
        layer,
        "0",
        "float32[128,32]",
        "-",
        "P()",
        "16.0 KiB",
        "yes",
        f"task stage_0 at {layer}",
        "sharded at x.py:3",
    )
    head = ("input", "submesh", "type", "axes", "layout", "bytes per device", "carried", "because of", "laid out by")
    tables = [plan_table(PlanTable(f"{count} rows", head, (row,) * count), 2) for count in (2, 41)]
    place = tmp_path / "page.html"
    place.write_text(page_of("tables", "", tables, ""), encoding="utf-8")
    with OpenPage(browser, place, viewport={"width": 700, "height": 900}) as page:
        assert page.locator("th").all_text_contents() == [name for name in head if name != "axes"] * 2
        assert page.locator("td.number").all_text_contents() == ["0", "16.0\xa0KiB"] * 43
        assert [each.is_visible() for each in page.locator("table").all()] == [True, False]
        page.emulate_media(media="print")
        page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
        assert page.evaluate("document.documentElement.scrollWidth") == 700


def test_heads_of_tables_are_whole_on_paper(browser: Browser, tmp_path: Path) -> None:
    name = "state.opt_state[1][0].mu['block_0']['channel_mixing']['Dense_0']['kernel']"
    row = (
        f"<code>{name}</code>",
        "4 x 4 x 3 x 32",
        "float32",
        "4.2e-07",
        "9.8e-05",
        "devices 0-3, replicated",
        "equal",
    )
    place = tmp_path / "page.html"
    place.write_text(page_of("arrays", "", [table("arrays", CheckedArrays.HEAD, [row])], ""), encoding="utf-8")
    lines = (
        "node => { const r = document.createRange(); r.selectNodeContents(node); return r.getClientRects().length; }"
    )
    with OpenPage(browser, place, viewport={"width": 720, "height": 1000}) as page:
        page.emulate_media(media="print")
        assert [each.evaluate(lines) for each in page.locator("th").all()] == [1] * len(CheckedArrays.HEAD)
        assert page.evaluate("document.documentElement.scrollWidth") == 720


def test_characters_that_cannot_be_seen_are_named(browser: Browser, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        put("bidi.py", 'def f(x):\r\n    return x\r\n\r\n\r\ny = f("\u202eab\u2066\u200b")  # mm: task(stage=0)\r\n')
        place = put("page.html", run("diff", "bidi.py", "--format", "html").stdout)
    with OpenPage(browser, tmp_path / place) as page:
        # Under the refusal of a task without a mesh, before and after.
        assert page.locator(".unseen").all_text_contents() == ["U+202E", "U+2066", "U+200B"] * 3
        assert "\u202e" not in (page.locator("body").text_content() or "")


def test_nothing_is_asked_for_where_no_file_changes(browser: Browser, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        put("empty.py", "x = 1\n")
        place = put("page.html", run("diff", "empty.py", "--format", "html").stdout)
    with OpenPage(browser, tmp_path / place) as page:
        assert page.locator(".care").count() == 0
        assert page.locator("#verified + *").text_content() == "Nothing to verify: no file would change."


def test_old_and_new_lines_follow_each_other_on_a_phone(browser: Browser, pages: dict[str, Path]) -> None:
    tops = """kind => [...document.querySelectorAll(`.diff tbody.change ${kind}`)].map(node => node.offsetTop)"""
    with OpenPage(browser, pages["verified"], viewport=WIDE) as page:
        assert set(page.evaluate(tops, ".old")) & set(page.evaluate(tops, ".new"))
    with OpenPage(browser, pages["verified"], viewport=NARROW) as page:
        for body in page.query_selector_all(".diff tbody.change"):
            kinds = [kind for _, kind in sorted(_placed(body))]
            assert kinds == sorted(kinds, reverse=True)


@pytest.mark.parametrize("viewport", [WIDE, NARROW], ids=["wide", "phone"])
def test_a_long_line_covers_no_other(browser: Browser, pages: dict[str, Path], viewport: Any) -> None:
    with OpenPage(browser, pages["verified"], viewport=viewport) as page:
        heights = page.evaluate(
            "[...document.querySelectorAll('.diff td')].map(cell => [cell.clientHeight, cell.scrollHeight])"
        )
        assert max(needed for _, needed in heights) > 30
        assert [(height, needed) for height, needed in heights if needed > height + 1] == []


def _placed(body: Any) -> list[tuple[float, str]]:
    found: list[tuple[float, str]] = body.evaluate(
        """node => [...node.querySelectorAll('.old, .new')]
          .map(each => [each.getBoundingClientRect().top, each.className])"""
    )
    return found


def test_what_files_and_evidence_hold_stays_text(browser: Browser, pages: dict[str, Path]) -> None:
    for name in ("review", "verified", "verify"):
        with OpenPage(browser, pages[name]) as page:
            assert page.locator("img, script, iframe, object, link, [onerror], [onload]").count() == 0
            assert page.locator("style").count() == 1
            text = page.locator("body").text_content() or ""
            assert EVIL in text
            assert ("</style><script>alert(2)</script>" in text) == (name == "review")
            assert ("</details><script>alert(4)</script>" in text) == (name == "verified")


def test_the_policy_holds_even_against_what_would_get_in(browser: Browser, pages: dict[str, Path]) -> None:
    watched = OpenPage(browser, pages["verified"])
    with pytest.raises(AssertionError, match="Content Security Policy"), watched as page:
        page.evaluate(
            """document.body.insertAdjacentHTML(
              'beforeend', '<img src=x onerror=alert(1)><b style=color:red onclick=alert(1)>.</b>')"""
        )
        page.locator("b").last.click()
        assert page.evaluate("document.querySelector('img').naturalWidth") == 0
    blocked = [event for event in watched.events if event.startswith("console: ")]
    assert len(blocked) >= 3
    assert not [event for event in watched.events if event.startswith("dialog")]


def test_everything_is_reached_by_keyboard_in_the_order_of_the_page(browser: Browser, pages: dict[str, Path]) -> None:
    with OpenPage(browser, pages["verified"], viewport=WIDE) as page:
        stops = f"[...document.querySelectorAll({STOPS!r})].filter(node => node.checkVisibility())"
        expected = page.evaluate(f"{stops}.length")
        seen = []
        for _ in range(expected):
            page.keyboard.press("Tab")
            seen.append(page.evaluate(f"{stops}.indexOf(document.activeElement)"))
            assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
        assert seen == list(range(expected))
        first = page.locator(".skip")
        first.focus()
        assert page.evaluate("document.activeElement.getBoundingClientRect().left") >= 0
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "main"
        box = page.locator("input[type=checkbox]").first
        box.focus()
        page.keyboard.press("Space")
        assert box.is_checked()
        summary = page.locator("summary").first
        summary.focus()
        page.keyboard.press("Enter")
        assert page.locator("details").first.get_attribute("open") is not None


STOPS = "a[href], input, summary, [tabindex='0']"


@pytest.mark.parametrize("name", NAMES)
def test_a_screen_reader_finds_its_way(browser: Browser, pages: dict[str, Path], name: str) -> None:
    with OpenPage(browser, pages[name]) as page:
        assert page.evaluate("document.documentElement.lang") == "en"
        assert [page.locator(each).count() for each in ("main", "body > header", "body > footer", "h1")] == [1, 1, 1, 1]
        levels = page.evaluate("[...document.querySelectorAll('h1,h2,h3,h4,h5,h6')].map(node => +node.tagName[1])")
        assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
        problems = page.evaluate(
            """() => {
              const ids = [...document.querySelectorAll('[id]')].map(node => node.id), found = [];
              if (new Set(ids).size !== ids.length) found.push('an id twice');
              for (const node of document.querySelectorAll('a[href]'))
                if (!document.getElementById(decodeURIComponent(node.hash.slice(1)))) found.push(node.outerHTML);
              for (const node of document.querySelectorAll('[aria-labelledby]'))
                if (!document.getElementById(node.getAttribute('aria-labelledby'))) found.push(node.outerHTML);
              for (const node of document.querySelectorAll('table'))
                if (!node.querySelector('th[scope]')) found.push(node.outerHTML);
              for (const node of document.querySelectorAll('svg'))
                if (!node.getAttribute('aria-label') && node.getAttribute('aria-hidden') !== 'true')
                  found.push(node.outerHTML);
              for (const node of document.querySelectorAll('input'))
                if (!node.labels.length) found.push(node.outerHTML);
              for (const node of document.querySelectorAll('nav, [role=region]'))
                if (!node.getAttribute('aria-label')) found.push(node.outerHTML);
              return found;
            }"""
        )
        assert problems == []


def test_the_account_comes_first_and_the_evidence_says_what_it_is_about(
    browser: Browser, pages: dict[str, Path]
) -> None:
    with OpenPage(browser, pages["review"]) as page:
        first = page.locator("h1").text_content() or ""
        assert " hints: " in first
        assert " rewritten, 1 left on purpose, " in first
        assert "Nothing is proved about this patch" in (page.locator("#verified + *").text_content() or "")
        assert "about another text" in (page.locator(".facts").text_content() or "")
    with OpenPage(browser, pages["verified"]) as page:
        assert "about this very text" in (page.locator("#verified + *").text_content() or "")
        assert "verified: equal2 rewritten hints not reached" in (page.locator(".facts").text_content() or "")
        page.locator(".facts a").click()
        assert page.locator(":target").text_content() == "Not covered"
        hunk = page.locator(".hunk", has_text="stage_loop, because of line 7: stages").last
        assert hunk.locator(".checks input").count() >= 1
        assert hunk.locator("th").all_text_contents() == ["Before", "After"]
        assert hunk.locator("del").count() >= 2


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_paper_is_white_and_has_what_was_folded(browser: Browser, pages: dict[str, Path], scheme: str) -> None:
    with OpenPage(browser, pages["plan"], color_scheme=scheme, viewport={"width": 794, "height": 1123}) as page:
        page.emulate_media(media="print", color_scheme=scheme)  # type: ignore[arg-type]
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert page.locator(".skip").is_hidden()
        assert page.locator("details table").first.evaluate("node => node.getBoundingClientRect().height") > 20
        assert page.evaluate("document.documentElement.scrollWidth") <= 794
        data = page.pdf(format="A4")
        assert data.startswith(b"%PDF")
