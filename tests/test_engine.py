"""The engine: gates, regions, checks of its own output, and independence of order and workers."""

from __future__ import annotations

import ast
import random
import sys
import warnings
from collections.abc import Iterator, Sequence
from types import ModuleType

import libcst as cst
import pytest

from mmrewrite.codemod import fragment
from mmrewrite.codemod.base import MeshCodemod
from mmrewrite.codemod.registry import Registry
from mmrewrite.directives.carrier import may_have_hints
from mmrewrite.engine import workers
from mmrewrite.engine.decide import in_order
from mmrewrite.engine.draft import draft_module
from mmrewrite.engine.edits import apply_edits, ordered_edits, undo_edits, without_repeats
from mmrewrite.engine.rewrite import rewrite_project, rewrite_source
from mmrewrite.engine.self_check import SecondRun, self_check
from mmrewrite.engine.settings import HintSettings
from mmrewrite.project import facts
from mmrewrite.project.facts import Facts, SourceFile, read_facts
from mmrewrite.project.project import Project
from mmrewrite.project.reach import Reach
from mmrewrite.results import Edit, HintReference, Refusal, Rewrite
from mmrewrite.source.text import SourceText

pytestmark = pytest.mark.quick

REGISTRY = Registry()

HINTED = "def f(x):\n    return x\n\n\ny = f(1)  # mm: task(stage=0)\n"

MODEL = """
def forward(layers, x):
    for layer in layers:  # mm: stages
        x = layer(x)
    return x
"""

TRAIN = """
import jax
from model import forward

# mm: mesh(stage=4)


def loss_fn(params, batch):
    return forward(params, batch).mean()


@jax.jit  # mm: mjit
def step(params, batch):
    return jax.grad(loss_fn)(params, batch)  # mm: microbatch(size=2)
"""


def files(**texts: str) -> list[SourceFile]:
    return [SourceFile(f"{name}.py", text.encode(), name) for name, text in texts.items()]


class TestGates:
    def test_files_without_the_marker_are_not_parsed(self) -> None:
        (result,) = rewrite_project(files(broken="this is not Python ("), REGISTRY)
        assert not result.changed
        assert not result.failed

    def test_codemods_are_not_loaded_without_hints(self) -> None:
        class Unloadable(Registry):
            def __getitem__(self, name: str) -> type[MeshCodemod]:
                raise AssertionError(f"{name} was loaded")

        text = 'x = "# mm: task(stage=0)"\n'
        assert not rewrite_project(files(module=text), Unloadable())[0].changed
        with pytest.raises(AssertionError, match="was loaded"):
            rewrite_project(files(module=HINTED), Unloadable())

    def test_the_marker_is_found_in_bytes(self) -> None:
        assert may_have_hints(b"x  # mm: off")
        assert may_have_hints(b"x  # MM off")
        assert not may_have_hints(b"x  # ok: off")

    def test_a_file_that_cannot_be_parsed_is_a_failure_of_that_file_only(self) -> None:
        one, other = rewrite_project(files(broken="x = (  # mm: off\n", good=HINTED), REGISTRY)
        assert one.failure is not None
        assert "cannot parse this file: '(' was never closed (line 1, column 5)" in one.failure
        assert other.changed

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            (
                b"# coding: utf-7\n" + HINTED.encode() + b"+AGE- = 2\n",
                "text that does not encode back to the same bytes",
            ),
            (HINTED.encode() + b"y = " + b"-" * 100_000 + b"1\n", "nested too deeply to be read; split its longest"),
            (HINTED.encode() + b"y = " + b"(" * 1000 + b")" * 1000 + b"\n", "cannot parse this file"),
            (
                HINTED.encode() + b"y = '\0'\n",
                f"line {HINTED.count(chr(10)) + 1} has a null byte, so this is no source",
            ),
        ],
        ids=["coding", "deep", "brackets", "null"],
    )
    def test_what_cannot_be_read_is_a_failure_with_the_reason(self, data: bytes, message: str) -> None:
        (result,) = rewrite_project([SourceFile("a.py", data, "a")], REGISTRY)
        assert message in (result.failure or "")

    @pytest.mark.parametrize(
        ("text", "is_large"),
        [
            ("x = [" + "a," * 60 + "]", True),
            ("x = (((((" * 40, True),
            ("f'" + "{a}" * 110 + "'", True),
            ("# " + "a b, " * 100, False),
            ("x = '''" + "a b \\' \n" * 100 + "'''", False),
            ('x = "' + 'a b \\" ' * 100 + '"', False),
        ],
    )
    def test_a_module_of_too_many_parts_is_not_parsed(
        self, text: str, is_large: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(facts, "_MOST_PARTS", 100)
        monkeypatch.setattr(facts, "_FEW_BYTES", 100)
        (result,) = rewrite_project([SourceFile("a.py", f"{HINTED}{text}\n".encode(), "a")], REGISTRY)
        assert (result.failure == facts.TOO_LARGE) is is_large

    def test_only_the_hinted_statements_reach_libcst(self, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[str] = []
        parse = cst.parse_module

        def spy(source: str | bytes) -> cst.Module:
            seen.append(str(source))
            return parse(source)

        monkeypatch.setattr(cst, "parse_module", spy)
        rewrite_source("a = [1] * 1000\n" * 50 + HINTED, REGISTRY)
        assert seen == ["y = f(1)\n"]


class TestRegions:
    def test_a_step_and_its_model_are_rewritten_together(self) -> None:
        results = rewrite_project(files(model=MODEL, train=TRAIN), REGISTRY)
        assert [result.changed for result in results] == [True, True]

    def test_a_refused_step_leaves_its_model_and_its_mesh_alone(self) -> None:
        train = TRAIN.replace("(loss_fn)(params, batch)", "(loss_fn)(params, batch, weights)")
        model, step = rewrite_project(files(model=MODEL, train=train), REGISTRY)
        assert not model.changed
        assert not step.changed
        assert [refusal.codemod for refusal in step.refusals] == ["declare_mesh", "compile_for_mesh", "microbatch_grad"]
        (refusal,) = model.refusals
        assert refusal.reason == (
            "left as it is, because a step and what it reaches are rewritten together: train.py:14 is refused"
        )

    def test_a_hint_error_in_the_model_leaves_the_step_alone(self) -> None:
        model, step = rewrite_project(files(model=MODEL.replace("stages", "satges"), train=TRAIN), REGISTRY)
        assert model.errors
        assert not step.changed
        assert step.refusals

    def test_another_step_is_none_of_its_business(self) -> None:
        text = (
            TRAIN
            + "\n\ndef other(x):\n    y = print(x)  # mm: task(stage=0)\n    return y, y + x(1)  # mm: shard('a')\n"
        )
        (result, _) = rewrite_project(files(train=text, model=MODEL), REGISTRY)
        assert [refusal.line for refusal in result.refusals] == [18, 19]
        assert "mm.mjit" in result.result.decode()
        assert "# mm: task" in result.result.decode()

    def test_a_step_that_gets_its_model_as_a_value(self) -> None:
        text = (
            "import jax\nfrom model import forward\n\n# mm: mesh(stage=4)\n\nMODELS = {'a': forward}\n\n\n"
            "@jax.jit  # mm: mjit\ndef step(apply, x):\n    y = apply(x)  # mm: microbatch(size=1)\n    return y\n"
        )
        train, model = rewrite_project(files(train=text, model=MODEL), REGISTRY)
        assert train.refusals
        assert not model.changed


class TestSelfChecks:
    def test_a_result_that_does_not_parse_is_our_bug(self) -> None:
        result = rewrite_source(HINTED, {"break_syntax": BreakSyntax})
        assert not result.changed
        assert result.failure is not None
        assert result.failure.startswith("this is a bug in mmrewrite (the result does not parse: ")
        assert "Please report it with this file" in result.failure

    def test_a_result_that_does_not_compile_is_our_bug(self) -> None:
        result = rewrite_source(HINTED, {"break_scopes": BreakScopes})
        assert not result.changed
        assert result.failure is not None
        assert "does not compile: no binding for nonlocal 'x' found" in result.failure

    def test_a_result_that_a_second_run_would_change_is_our_bug(self) -> None:
        result = rewrite_source(HINTED, {"never_done": NeverDone})
        assert result.failure is not None
        assert "a second run would change the file again" in result.failure

    def test_a_codemod_that_raises_is_our_bug_in_that_file_only(self) -> None:
        one, other = rewrite_project(
            files(bad=HINTED, good="x = 1  # mm: off\n".replace("  #", "\n#")), {"crash": Crash}
        )
        assert one.failure is not None
        assert "ZeroDivisionError: here, at test_engine.py:" in one.failure
        assert other.failure is None

    def test_a_review_that_raises_is_our_bug_and_nothing_is_rewritten(self) -> None:
        codemods = {**REGISTRY, "crashing_review": CrashingReview}
        for result in rewrite_project(files(one=HINTED, other=HINTED), codemods):
            assert not result.changed
            assert "ZeroDivisionError: in review, at test_engine.py:" in (result.failure or "")

    def test_a_second_run_that_fails_is_our_bug(self) -> None:
        refused = "z = f(1) + f(2)  # mm: task(stage=0)\n"
        result = rewrite_source(HINTED + refused, {**REGISTRY, "crashing_review": CrashesOnResults})
        assert not result.changed
        assert "(a second run over the result fails)" in (result.failure or "")

    def test_a_form_feed_is_kept(self) -> None:
        result = rewrite_source("def f(x, y):\n    return x\n\n\nz = f(1,\n\f2)  # mm: task(stage=0)\n", REGISTRY)
        assert b"(1,\n\f2)\n" in result.result

    @pytest.mark.parametrize(
        "source",
        [
            # The comment goes with the call around it, and the decorator begins below its `@`.
            "import jax\nfrom mmrewrite import hints\nhints.mesh(stage=2)\n\ndef arguments(): return (1,)\n"
            "@hints.verify(args=# mm: task(stage=1)\n\n   arguments)\n@hints.mjit\n@jax.jit\ndef step(x):\n"
            "    return hints.task(f, stage=1)(x)\n",
            "import jax\n\n@(  # why\n    f)\ndef forward(x):\n"
            '    with jax.named_scope("encoder"):  # mm: task(stage=0)\n        x = g(x)\n    return x\n',
            # What is passed binds a name, and a backslash stands alone before an indented line.
            "import jax\nfrom mmrewrite import hints\nhints.mesh(stage=2)\n@hints.mjit\n@jax.jit\ndef step(x):\n"
            "    return hints.task(f, stage=(y := 0))(x)\n",
            "import jax\n# mm: mesh(stage=2)\n@jax.jit  # mm: mjit\ndef step(x):\n    def f(x):\n\\\n        return x\n"
            "    return f(  # why\n        x)  # mm: task(stage=0)\n",
        ],
    )
    def test_found_by_generated_programs(self, source: str) -> None:
        result = rewrite_source(source, REGISTRY)
        assert result.changed and result.failure is None

    def test_lines_of_old_macs_are_refused_with_what_to_do(self) -> None:
        (refusal,) = rewrite_source(HINTED.replace("\n", "\r"), REGISTRY).refusals
        assert refusal.reason == (
            "LibCST reads no lines that end in a carriage return alone; save the file with line feeds"
        )

    # No program is known for which the next two happen, so LibCST is made to read something else.
    def test_a_statement_that_libcst_prints_otherwise_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        other = cst.parse_module("y = f( 1)\n")
        monkeypatch.setattr(cst, "parse_module", lambda _: other)
        (refusal,) = rewrite_source(HINTED, REGISTRY).refusals
        expected = "LibCST does not print this statement as it stands; write the statement more plainly"
        assert refusal.reason == expected

    def test_a_statement_with_other_calls_than_ast_sees_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(fragment, "nodes_in_order", lambda _: [])
        (refusal,) = rewrite_source(HINTED, REGISTRY).refusals
        expected = "the calls of this statement are not where `ast` has them; give what it makes a name in a statement"
        assert refusal.reason.startswith(expected)

    def test_calls_of_a_header_stay(self) -> None:
        text = "if f(x):\n    pass\n"
        statement = ast.parse(text).body[0]
        assert isinstance(statement, ast.If)
        assert isinstance(statement.test, ast.Call)
        with pytest.raises(fragment.NotReproduced, match="a call in the head of a block stays as it is"):
            fragment.Fragment.parse(SourceText.decode(text.encode()), statement, ()).call(statement.test)

    def test_text_that_changes_outside_of_edits_is_our_bug(self) -> None:
        facts = read_facts(files(module=HINTED)[0], ())
        assert isinstance(facts, Facts)
        result = Rewrite(facts.path, facts.file.data, facts.file.data + b"z = 1\n")
        run = SecondRun(lambda file: facts, lambda modules: {}, "rewritten", "statements")
        (checked,) = self_check({facts.path: result}, [facts], run).values()
        assert not checked.changed
        assert "(text outside the edited statements changed)" in (checked.failure or "")

    @pytest.mark.parametrize("rest", ["", "def f():\n    nonlocal x\n"])
    def test_a_result_without_hints_is_read_only_where_it_does_not_compile(self, rest: str) -> None:
        facts = read_facts(files(module=HINTED)[0], ())
        assert isinstance(facts, Facts)
        result, seen = Rewrite(facts.path, facts.file.data, facts.file.data + f"\n{rest}".encode()), list[str]()

        def read(file: SourceFile) -> Facts:
            seen.append(file.path)
            return facts

        self_check({facts.path: result}, [facts], SecondRun(read, lambda modules: {}, "", "", lambda file: False))
        assert seen == ([facts.path] if rest else [])


class BreakSyntax(MeshCodemod):
    directive = "task"

    def rewrite(self) -> None:
        self.site.insert_above("this is no Python")


class BreakScopes(MeshCodemod):
    directive = "task"

    def rewrite(self) -> None:
        self.site.insert_above("def f():\n    nonlocal x")


class NeverDone(MeshCodemod):
    directive = "task"

    def rewrite(self) -> None:
        self.site.insert_above("pass  # mm: task(stage=0)")
        self.site.transform(self.site.statement, self)


class Crash(MeshCodemod):
    directive = "task"

    def rewrite(self) -> None:
        raise ZeroDivisionError("here")


class CrashingReview(MeshCodemod):
    directive = "none"

    @classmethod
    def review(cls, project: Project, reach: Reach, modules: Sequence[Facts]) -> Iterator[Refusal]:
        raise ZeroDivisionError("in review")


class CrashesOnResults(CrashingReview):
    @classmethod
    def review(cls, project: Project, reach: Reach, modules: Sequence[Facts]) -> Iterator[Refusal]:
        if any("mmruntime" in facts.source.text for facts in modules):
            raise ZeroDivisionError("in review")
        return iter(())


class TestEdits:
    def edit(self, start: int, end: int, text: str) -> Edit:
        return Edit(start, end, text, ("a_codemod",), (HintReference(1, 1, "a hint"),))

    def test_insertions_at_one_place_keep_their_order(self) -> None:
        edits = [self.edit(3, 3, "b"), self.edit(0, 1, "A"), self.edit(3, 3, "a")]
        assert apply_edits("xyz.", ordered_edits(edits)) == "Ayzba."

    def test_edits_that_overlap_are_a_bug(self) -> None:
        with pytest.raises(AssertionError, match="edits overlap at line 1"):
            ordered_edits([self.edit(0, 2, "a"), self.edit(1, 3, "b")])

    def test_edits_are_made_once(self) -> None:
        edits = [self.edit(4, 6, ""), self.edit(0, 6, ""), self.edit(6, 6, "a"), self.edit(6, 6, "a")]
        assert list(without_repeats(edits)) == [self.edit(0, 6, ""), self.edit(6, 6, "a")]

    def test_a_part_of_the_text(self) -> None:
        assert apply_edits("0123456789", [self.edit(4, 5, "four")], 2, 7) == "23four56"

    def test_undo(self) -> None:
        edits = [self.edit(0, 1, ""), self.edit(3, 3, "new"), self.edit(5, 7, "x")]
        original = "0123456789"
        assert undo_edits(apply_edits(original, edits), edits, original) == original
        assert undo_edits(apply_edits(original, edits)[:-1], edits, original) != original


class TestOrder:
    def test_results_do_not_depend_on_the_order_of_files_nor_on_workers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        given = files(
            model=MODEL,
            train=TRAIN,
            **{f"part_{index}": HINTED.replace("stage=0", f"stage={index}") for index in range(6)},
        )
        monkeypatch.delitem(sys.modules, "jax", raising=False)
        monkeypatch.setattr(workers, "ENOUGH", 0)
        expected = {result.path: result for result in rewrite_project(given, REGISTRY)}
        shuffled = random.Random(0).sample(given, len(given))
        with warnings.catch_warnings():
            # JAX, which other tests import, warns about every fork.
            warnings.simplefilter("ignore")
            for jobs in (1, 3):
                results = rewrite_project(shuffled, REGISTRY, settings=HintSettings(jobs=jobs))
                assert [result.path for result in results] == [file.path for file in shuffled]
                assert {result.path: result for result in results} == expected

    @pytest.fixture
    def fork_fails(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fork(*_: object) -> None:
            raise AssertionError("forked")

        monkeypatch.setattr("multiprocessing.get_context", fork)
        # Other tests import it.
        monkeypatch.delitem(sys.modules, "jax", raising=False)

    @pytest.mark.usefixtures("fork_fails")
    def test_little_work_is_not_forked(self) -> None:
        assert list(workers.in_workers(str, [1, 2], work=10, jobs=2)) == ["1", "2"]
        with pytest.raises(AssertionError, match="forked"):
            workers.in_workers(str, [1, 2], work=workers.ENOUGH, jobs=2)

    @pytest.mark.usefixtures("fork_fails")
    def test_a_process_with_jax_in_it_is_not_forked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "jax", ModuleType("jax"))
        assert list(workers.in_workers(str, [1, 2], work=workers.ENOUGH, jobs=2)) == ["1", "2"]

    @pytest.mark.usefixtures("fork_fails")
    def test_hints_are_work_and_not_only_characters(self) -> None:
        text = "def f(x):\n    return x\n\n\n" + "".join(f"y{n} = f({n})  # mm: task(stage=0)\n" for n in range(25))
        many = files(**{f"part_{index}": text for index in range(20)})
        assert sum(len(file.data) for file in many) < workers.ENOUGH / 20
        results = rewrite_project(many, REGISTRY, settings=HintSettings(jobs=2))
        assert all("AssertionError: forked" in (result.failure or "") for result in results)
        few = files(**{f"part_{index}": HINTED for index in range(20)})
        assert not any(result.failure for result in rewrite_project(few, REGISTRY, settings=HintSettings(jobs=2)))

    def test_run_after(self) -> None:
        class First(MeshCodemod):
            run_after = ("z",)

        class Last(MeshCodemod):
            pass

        class Lost(MeshCodemod):
            run_after = ("nobody",)

        class Loop(MeshCodemod):
            run_after = ("loop",)

        assert list(in_order({"a": First, "z": Last})) == ["z", "a"]
        with pytest.raises(ValueError, match=r"a: `run_after` names 'nobody', and there is no such codemod\."):
            in_order({"a": Lost})
        with pytest.raises(ValueError, match="`run_after` goes round in a circle among loop"):
            in_order({"loop": Loop})


class TestSettings:
    def test_codemods_that_are_not_selected_leave_their_hints(self) -> None:
        text = HINTED + 'z = f(2)  # mm: shard("a")\n'
        (result,) = rewrite_project(
            files(module=text), REGISTRY, settings=HintSettings(selected=frozenset(("constrain_value",)))
        )
        assert "# mm: task(stage=0)" in result.result.decode()
        assert "with_sharding_constraint" in result.result.decode()
        (left,) = result.left
        assert left.reason == "place_task is not selected"

    def test_axes_of_the_configuration(self) -> None:
        settings = HintSettings(axes=(("batch", "data"), ("embed", None), ("mlp", "model")))
        (result,) = rewrite_project(files(module="# mm: mesh(data=2)\nx = 1\n"), REGISTRY, settings=settings)
        assert 'logical_axes=(("batch", "data"), ("embed", None))' in result.result.decode()

    def test_width(self) -> None:
        (result,) = rewrite_project(files(module=HINTED), REGISTRY, settings=HintSettings(width=40))
        assert max(len(line) for line in result.result.decode().splitlines()) <= 40 + len('mesh_slice={"stage": 0}')
        assert "y = mm.task(\n" in result.result.decode()


def test_a_refusal_takes_back_what_its_site_registered_and_nothing_else() -> None:
    text = "def f(x):\n    return x\n\n\n"
    parts = [f"y{number} = f({number})  # mm: task(stage=0)\n" for number in range(4)]
    both = "".join(f"{part}z{number} = f(1) + f(2)  # mm: task(stage=1)\n" for number, part in enumerate(parts))
    refused, plain = rewrite_source(text + both, REGISTRY), rewrite_source(text + "".join(parts), REGISTRY)
    assert [refusal.line for refusal in refused.refusals] == [6, 8, 10, 12]
    kept = [line for line in refused.result.decode().splitlines() if not line.startswith("z")]
    assert kept == plain.result.decode().splitlines()
    attempts = []

    class Counting(REGISTRY["place_task"]):  # type: ignore[misc]
        def rewrite(self) -> None:
            attempts.append(self.site.line)
            super().rewrite()

    rewrite_source(text + both, {"place_task": Counting})
    assert len(attempts) <= 3 * 8


def test_draft_leaves_out_what_is_excluded() -> None:
    facts = read_facts(files(module=HINTED)[0], tuple(REGISTRY))
    assert isinstance(facts, Facts)
    (hint,) = facts.hints.hints
    project = Project([facts], lambda path: None, ())
    codemods = in_order(REGISTRY)
    assert draft_module(facts, project, codemods, HintSettings(), {hint.start}).edits == ()
    assert draft_module(facts, project, codemods, HintSettings(), ()).edits != ()
