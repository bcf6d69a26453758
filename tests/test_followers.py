"""Values are followed in `mmrewrite/values` alone: other files go through no choices and take no partials apart.

A file that looks at these forms for another purpose stands below, with the reason. A new question is a test of leaves
for one of the readers of `mmrewrite/values/flow.py`.
"""

from __future__ import annotations

import ast

from layers import tree_of

# Who looks into a choice (`a if b else c`, `a or b`).
CHOICES = {
    "codemods/mmmodernize/doubts/ambiguous_names.py": "which expressions may be names of modules",
    "codemods/mmmodernize/meshes/meshless_calls.py": "what a handler of exceptions tests",
    "codemods/mmmodernize/rewrites/meshes/replace_shard_map.py": "which values need brackets behind a minus",
    "codemods/mmmodernize/sites/version_conditions.py": "what a condition about versions says",
    "codemods/mmmodernize/sites/version_guards.py": "which branch a version of JAX takes",
    "mmrewrite/analysis/loops/dataflow.py": "what a statement of a loop writes and reads, not what it is",
    "mmrewrite/source/branches.py": "the sides of a choice, for those that edit each",
}
# Who knows a `functools.partial`.
PARTIALS = {
    "mmrewrite/analysis/loops/layer_calls.py": "what a task is called, by the words of its call",
    "mmrewrite/codemod/site.py": "a name for it in what codemods write",
    "mmrewrite/source/calls.py": "calls in normal form, for those that read and edit their text",
    "mmrewrite/source/line_breaking.py": "calls that the tool itself has written, by their text",
}
# Who looks at an assignment in an expression (`a := b`).
WALRUSES = {
    "codemods/mmcodemods/values/gather_value.py": "which names an expression binds",
    "codemods/mmmodernize/doubts/ambiguous_names.py": "which expressions may be names of modules",
    "codemods/mmmodernize/meshes/mesh_regions.py": "a mesh that an expression names can be no statement",
    "codemods/mmmodernize/meshes/partition_specs.py": "the specs in it are edited at their places",
    "codemods/mmmodernize/modules/passed_modules.py": "whether a module gets another name",
    "codemods/mmmodernize/rewrites/names/replace_host_callback.py": "which lambdas bind a name again",
    "codemods/mmmodernize/sites/version_conditions.py": "what a condition about versions says",
    "mmrewrite/analysis/loops/dataflow.py": "what a statement of a loop writes and reads, not what it is",
    "mmrewrite/analysis/steps/closures.py": "the name that a lambda is given",
    "mmrewrite/codemod/imports.py": "names that may be unbound where a codemod would write them",
    "mmrewrite/directives/arguments.py": "which arguments need brackets in a display",
    "mmrewrite/directives/calls.py": "which expressions need parentheses",
    "mmrewrite/source/branches.py": "the sides of a choice, for those that edit each",
    "mmrewrite/source/names.py": "the bindings of names, on which values rest",
}


def names_of(tree: ast.Module) -> set[str]:
    """The classes of syntax that a file names, its texts in quotes, and what it imports."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="ast"), attr=name):
                found.add(f"ast.{name}")
            case ast.Constant(value=str(text)):
                found.add(repr(text))
            case ast.alias(name=name):
                found.add(name)
            case _:
                pass
    return found


def followers(asked: set[str]) -> set[str]:
    trees = {path: ast.parse(text) for path, text in tree_of().items() if not path.startswith("runtime/")}
    own = (path for path in trees if not path.startswith("mmrewrite/values/"))
    return {path for path in own if names_of(trees[path]) & asked}


def test_choices_are_followed_in_one_place() -> None:
    assert followers({"ast.IfExp", "ast.BoolOp"}) == set(CHOICES)


def test_partials_are_taken_apart_in_one_place() -> None:
    texts = map(repr, ("functools.partial", "jax.tree_util.Partial", "partial"))
    # A function of JAX has that name as well.
    moved = {"codemods/mmmodernize/rewrites/names/move_names.py"}
    assert followers({"PARTIALS", *texts}) - moved == set(PARTIALS)


def test_assignments_in_expressions_are_followed_in_one_place() -> None:
    assert followers({"ast.NamedExpr"}) == set(WALRUSES)
