"""Values in hints that are checked without running anything, and hints that contradict each other."""

from __future__ import annotations

import pytest

from mmrewrite.codemod.registry import Registry
from mmrewrite.directives.schedule_names import SCHEDULES
from mmrewrite.engine.rewrite import rewrite_project, rewrite_source
from mmrewrite.engine.settings import HintSettings
from mmrewrite.project.facts import SourceFile
from mmrewrite.results import HintError, Rewrite

pytestmark = pytest.mark.quick

REGISTRY = Registry()

PROGRAM = """\
import jax
import jax.numpy as jnp

# mm: MESH


def model(params, x):
    x = jnp.tanh(x)  # mm: HINT
    return x @ params


def loss_fn(params, batch):
    return jnp.mean(model(params, batch))


@jax.jit  # mm: mjit
def step(params, batch):
    return jax.grad(loss_fn)(params, batch)  # mm: MICROBATCH
"""


def program(
    hint: str = "task(stage=0)",
    mesh: str = 'mesh(stage=4, data=2); axes(batch="data", embed=None)',
    microbatch: str = 'microbatch(size=2, reduce="mean")',
) -> str:
    return PROGRAM.replace("HINT", hint).replace("MESH", mesh).replace("MICROBATCH", microbatch)


def rewrite(text: str, axes: tuple[tuple[str, str | None], ...] = ()) -> Rewrite:
    result = rewrite_source(text, REGISTRY, settings=HintSettings(axes=axes))
    assert result.failure is None
    return result


def error_in(text: str, axes: tuple[tuple[str, str | None], ...] = ()) -> tuple[str, str]:
    """The message of the only error, and the text above its carets."""
    result = rewrite(text, axes)
    (error,) = result.errors
    assert not result.changed
    return error.message, marked(error)


def marked(error: HintError) -> str:
    return error.source_line[error.column - 1 :][: error.length]


def test_the_program_itself_is_right() -> None:
    result = rewrite(program())
    assert (result.changed, result.errors, result.refusals) == (True, (), ())


class TestSchedules:
    @pytest.mark.parametrize("name", SCHEDULES)
    def test_every_name_and_alias_is_accepted(self, name: str) -> None:
        result = rewrite(program(microbatch=f'microbatch(size=2, reduce="mean", schedule="{name}")'))
        assert (result.changed, result.errors) == (True, ())

    @pytest.mark.parametrize(
        ("name", "near"), [("gpip", "gpipe"), ("1F1B", "1f1b"), ("interleaved", "interleaved-1f1b"), ("zbv", "zb-v")]
    )
    def test_a_misspelt_one(self, name: str, near: str) -> None:
        message, place = error_in(program(microbatch=f'microbatch(size=2, schedule="{name}")'))
        assert (message, place) == (f"there is no schedule '{name}'; did you mean `{near}`?", f'"{name}"')

    def test_one_that_is_like_none(self) -> None:
        message, _ = error_in(program(microbatch='microbatch(size=2, schedule="quick")'))
        assert message == f"there is no schedule 'quick'; known: {', '.join(sorted(SCHEDULES))}"

    def test_an_expression_is_not_looked_at(self) -> None:
        assert rewrite(program(microbatch='microbatch(size=2, reduce="mean", schedule=name)')).changed


NO_ARGUMENT = (
    "the loss takes 2 arguments by position, counted from 0, so there is no argument {}; write the name of the value "
    "in quotes, also where the loss closes over it"
)


class TestNumbers:
    @pytest.mark.parametrize(
        ("microbatch", "message", "place"),
        [
            ("microbatch(size=0)", "a microbatch of 0 examples is none; `size` must be 1 or more", "0"),
            ("microbatch(size=-4)", "a microbatch of -4 examples is none; `size` must be 1 or more", "-4"),
            ("microbatch(0)", "a microbatch of 0 examples is none; `size` must be 1 or more", "0"),
            ("microbatch(count=0)", "0 microbatches are none; `count` must be 1 or more", "0"),
            ("microbatch(count=-1)", "-1 microbatches are none; `count` must be 1 or more", "-1"),
            (
                "microbatch(size=2, count=4)",
                "`size=` and `count=` contradict each other; keep one",
                "microbatch(size=2, count=4)",
            ),
            (
                "microbatch(size=2, argnum=5)",
                NO_ARGUMENT.format(5),
                "5",
            ),
            (
                "microbatch(size=2, argnum=-3)",
                NO_ARGUMENT.format(-3),
                "-3",
            ),
            (
                "microbatch(size=2, argnum=(1, 2))",
                NO_ARGUMENT.format(2),
                "(1, 2)",
            ),
            (
                "microbatch(size=2, argnum=1, rng=2)",
                NO_ARGUMENT.format(2),
                "2",
            ),
        ],
    )
    def test_of_microbatch(self, microbatch: str, message: str, place: str) -> None:
        assert error_in(program(microbatch=microbatch)) == (message, place)

    def test_argnum_is_not_checked_where_the_parameters_cannot_be_seen(self) -> None:
        hint = 'microbatch(size=2, argnum=1, reduce="mean")'
        star = program(microbatch=hint).replace("def loss_fn(params, batch):", "def loss_fn(params, *rest):")
        assert rewrite(star.replace("batch))", "rest[0]))")).errors == ()
        assert rewrite(program(microbatch=hint).replace("jax.grad(loss_fn)", "jax.grad(other.loss)")).errors == ()

    @pytest.mark.parametrize("size", ["0", "-2"])
    def test_of_a_mesh(self, size: str) -> None:
        message, place = error_in(program(mesh=f"mesh(stage={size})"))
        assert (message, place) == (f"axis `stage` has {size} slices; it needs one or more", size)

    @pytest.mark.parametrize("index", ["4", "9", "-1"])
    @pytest.mark.parametrize("form", ["task(stage={})", 'task("encode", data=0, stage={})'])
    def test_slices_of_a_mesh(self, form: str, index: str) -> None:
        assert error_in(program(form.format(index))) == (
            f"the mesh has no slice {index} of axis `stage`, which has 4: write 0 to 3",
            index,
        )

    def test_slices_in_every_kind_of_hint(self) -> None:
        loop = "    for i in range(2):  # mm: task(stage=7)\n        x = jnp.tanh(x)\n"
        for text in (
            program().replace("def model", "# mm: task(stage=7)\ndef model"),
            program().replace("def model", '# mm: register("h", stage=7)\ndef model'),
            program().replace("    x = jnp", f"{loop}    x = jnp"),
            program().replace("    x = jnp", '    with jax.named_scope("a"):  # mm: task(stage=7)\n        x = jnp', 1),
        ):
            assert "slice 7 of axis `stage`" in error_in(text)[0]

    def test_the_only_slice(self) -> None:
        assert error_in(program("task(stage=1)", mesh="mesh(stage=1)"))[0].endswith("which has 1: write 0")

    @pytest.mark.parametrize(
        ("mesh", "hint"), [("mesh(stage=n)", "task(stage=9)"), ("mesh(stage=4)", "task(stage=k // 2)")]
    )
    def test_computed_sizes_and_slices_are_not_checked(self, mesh: str, hint: str) -> None:
        assert rewrite(f"n, k = 16, 2\n{program(hint, mesh)}").errors == ()

    def test_a_mesh_made_by_hand(self) -> None:
        made = 'mesh = mm.MultiMesh(axis_sizes=(4, n), axis_names=("stage", "data"))'
        text = program("task(stage=4)").replace("# mm: mesh", f"import mmruntime as mm\n{made}\n# mm: off\n# mm: mesh")
        text = text.replace("\n\n\ndef model", "\n# mm: on\n\n\ndef model")
        assert "no slice 4 of axis `stage`" in error_in(text)[0]
        assert rewrite(text.replace("stage=4)", "data=9)")).errors == ()


class TestLogicalNames:
    REST = ". For a dimension that is replicated on purpose write `None` here, or map it to None in `axes`"

    @pytest.mark.parametrize(
        ("hint", "name", "place"),
        [
            ('shard("batch", "embd")', "embd", '"embd"'),
            ('shard("batch", ("embed", "embd"))', "embd", '("embed", "embd")'),
        ],
    )
    def test_one_that_axes_does_not_have(self, hint: str, name: str, place: str) -> None:
        message = f"`axes` has no logical name `{name}`; did you mean `embed`?{self.REST}"
        assert error_in(program(hint)) == (message, place)

    def test_on_a_def(self) -> None:
        for hint in ('shard(x=("batch", "embd"))', 'shard(out=("embd",))'):
            text = program().replace("def model", f"# mm: {hint}\ndef model")
            assert error_in(text)[0].startswith("`axes` has no logical name `embd`; did you mean `embed`?")

    def test_as_a_call(self) -> None:
        text = program().replace("import jax\n", "import jax\nfrom mmrewrite import hints\n", 1)
        text = text.replace("return x @ params", 'return hints.shard(x @ params, "bach", None)')
        assert error_in(text)[0].startswith("`axes` has no logical name `bach`; did you mean `batch`?")

    def test_of_the_configuration(self) -> None:
        text = program('shard("batch", "embd")', mesh="mesh(stage=4, data=2)")
        assert rewrite(text).errors == ()
        assert "no logical name `embd`" in error_in(text, (("batch", "data"), ("embed", None)))[0]
        assert rewrite(text, (("batch", "data"), ("embd", None))).errors == ()

    def test_of_another_module(self) -> None:
        model = "def widen(x):\n    y = x + 1  # mm: shard('batch', 'embd')\n    return y\n"
        text = f"import layers\n{program()}"
        files = [SourceFile("layers.py", model.encode(), "layers"), SourceFile("step.py", text.encode(), "step")]
        layers, _ = rewrite_project(files, REGISTRY)
        assert "no logical name `embd`" in layers.errors[0].message

    def test_not_where_a_name_is_computed(self) -> None:
        mesh = 'mesh(stage=4, data=2); axes(("batch", "data"), (NAME, None))'
        assert rewrite(program('shard("batch", "embd")', mesh=mesh)).errors == ()
        assert rewrite(program('shard("batch", NAME)')).errors == ()
        assert rewrite(program('shard("batch", None)')).errors == ()


class TestContradictions:
    def test_axes_beside_a_mesh_that_has_axes(self) -> None:
        assert error_in(program('axes(batch="stage")')) == (
            "the `mesh(...)` of line 4 has an `axes(...)` already, on line 4; put all pairs into that one",
            'axes(batch="stage")',
        )

    def test_axes_twice_and_neither_with_the_mesh(self) -> None:
        text = program('axes(batch="stage")', mesh="mesh(stage=4)")
        text = text.replace("    return x @", "    # mm: axes(embed=None)\n    return x @")
        errors = rewrite(text).errors
        assert [marked(error) for error in errors] == ['axes(batch="stage")', "axes(embed=None)"]
        assert "has an `axes(...)` already" in errors[0].message

    def test_a_second_mesh(self) -> None:
        for place in ("def loss_fn", "@jax.jit"):
            message, marks = error_in(program().replace(place, f"# mm: mesh(stage=2)\n{place}", 1))
            assert marks == "mesh(stage=2)"
            assert message == (
                "a second `mesh(...)`, and steps could not tell which of the two is theirs; the first is on line 4. "
                "Keep one, or declare each in the function that uses it"
            )

    def test_a_mesh_in_each_of_two_functions(self) -> None:
        step = (
            "    @jax.jit  # mm: mjit\n    def step(x):\n        return abs(x)  # mm: task(stage=0)\n    return step\n"
        )
        text = "".join(f"def make_{n}():\n    # mm: mesh(stage={n})\n    n = {n}\n{step}\n\n" for n in (2, 4))
        result = rewrite(f"import jax\n\n\n{text}")
        assert (result.changed, result.errors, result.refusals) == (True, (), ())

    def test_one_task_in_two_places(self) -> None:
        text = program('task("encode", stage=0)').replace(
            "def loss_fn", '# mm: task(name="encode", stage=1)\ndef loss_fn'
        )
        assert error_in(text) == (
            '`task("encode", ...)` contradicts that of line 8, `task("encode", stage=0)`: one name has one place; '
            "keep one, or rename one",
            'task(name="encode", stage=1)',
        )
        assert rewrite(text.replace("stage=1)", "stage=0)")).errors == ()
        assert rewrite(text.replace('"encode", stage=1)', '"decode", stage=1)')).errors == ()

    def test_one_scope_in_two_places(self) -> None:
        text = program().replace("def model", '# mm: register("h", stage=0)\n# mm: register("h", stage=1)\ndef model')
        assert "one name has one place" in error_in(text)[0]

    def test_axes_of_a_mesh_that_stays(self) -> None:
        text = 'import jax\n\n\nclass A:\n    # mm: mesh(stage=2); axes(batch="stage")\n    x = 1\n'
        assert [refusal.reason for refusal in rewrite(text).refusals] == [
            "left as it is: the `mesh(...)` that it belongs to stays",
            "a mesh in a class body would be an attribute of the class; write it above the class",
        ]
