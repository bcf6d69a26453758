"""Sharding hints of Flax find the mesh of `compat.mesh_context`, and only there."""

import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from mmruntime import compat
from mmruntime._old_jax import mesh_context

MESH = Mesh(np.array(jax.devices()).reshape(4, 2), ("d", "m"))


def test_hints_find_the_mesh_in_this_thread_and_context_only():
    nn = pytest.importorskip("flax.linen")

    def hinted(x):
        return nn.with_logical_constraint(x, ("batch", "out"))

    def parts(x):
        return x.sharding.num_devices

    compiled, x, elsewhere = jax.jit(hinted), jnp.ones((8, 4)), []
    with nn.logical_axis_rules((("batch", "d"), ("out", "m"))):
        assert (parts(hinted(x)), parts(compiled(x))) == (1, 1)
        with compat.mesh_context(MESH):
            assert (parts(hinted(x)), parts(compiled(x))) == (8, 8)
            assert parts(jnp.ones((8, 4)) + 1) == 1
            thread = threading.Thread(target=lambda: elsewhere.append(parts(compiled(x))))
            thread.start()
            thread.join()
            with compat.mesh_context(Mesh(MESH.devices[:2], ("d", "m"))):
                assert parts(compiled(x)) == 4
        assert (elsewhere, parts(hinted(x)), parts(compiled(x))) == ([1], 1, 1)


@pytest.fixture
def late(tmp_path, monkeypatch):
    """A module of a package that is not imported yet, in place of Flax's."""
    package = tmp_path / "late_hints"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "meta.py").write_text("def global_mesh_defined():\n    'Whether.'\n    return False\n")
    monkeypatch.setattr(mesh_context, "_MODULE", "late_hints.meta")
    # Without the finder that an earlier context may have left, which waits for Flax's own module.
    finders = [finder for finder in sys.meta_path if not isinstance(finder, mesh_context._AtImport)]
    monkeypatch.setattr(sys, "meta_path", finders)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in [name for name in sys.modules if name.startswith("late_hints")]:
        del sys.modules[name]


def test_an_import_inside_of_the_context(late):
    answers = []
    for _ in range(2):
        mesh_context.tell_linen(lambda: bool(answers))
    from late_hints import meta  # type: ignore[import-not-found]

    question = meta.global_mesh_defined
    mesh_context.tell_linen(lambda: True)
    assert meta.global_mesh_defined is question
    assert question.__doc__ == "Whether."
    assert question() is False
    answers.append(1)
    assert question() is True


def test_a_flax_that_does_not_ask_so_is_left_alone(late):
    from late_hints import meta

    del meta.global_mesh_defined
    mesh_context.tell_linen(lambda: True)
    assert not hasattr(meta, "global_mesh_defined")
