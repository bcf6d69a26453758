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
    "codemods/mmmodernize/meshes/mesh_contexts.py": "each side of a choice is edited at its place",
    "codemods/mmmodernize/meshes/meshless_calls.py": "what a handler of exceptions tests",
    "codemods/mmmodernize/meshes/partition_specs.py": "each side of a choice is edited at its place",
    "codemods/mmmodernize/rewrites/meshes/replace_shard_map.py": "each side of a choice is edited at its place",
    "codemods/mmmodernize/sites/version_guards.py": "which branch a version of JAX takes",
    "codemods/mmmodernize/text/text_patterns.py": "which texts a program puts together, as patterns",
    "mmrewrite/analysis/loops/dataflow.py": "what a statement of a loop writes and reads, not what it is",
    "mmrewrite/source/branches.py": "the sides of a choice, for those that edit each",
}
# Who knows a `functools.partial`.
PARTIALS = {
    "codemods/mmcodemods/meshes/compile_for_mesh.py": "of which function an argument is a partial",
    "codemods/mmmodernize/calls/call_forms.py": "calls in the text of a partial, for codemods that edit them",
    "codemods/mmmodernize/doubts/held_functions.py": "calls with keywords for what they are given first",
    "codemods/mmmodernize/meshes/mapped_gradients.py": "forward: to be moved to `Used`",
    "codemods/mmmodernize/meshes/mesh_extents.py": "what may be a function, by its text",
    "codemods/mmmodernize/meshes/uncompiled_code.py": "what a partial is given is not run there",
    "codemods/mmmodernize/modules/held_modules.py": "a partial itself holds what it is given",
    "mmrewrite/analysis/loops/outlining.py": "writes a partial",
    "mmrewrite/analysis/meshes/mesh_requests.py": "arguments of JAX's functions in the text of a partial",
    "mmrewrite/analysis/steps/batch_arguments.py": "which calls only make a partial",
    "mmrewrite/analysis/steps/compilers.py": "a partial that binds options compiles too",
    "mmrewrite/analysis/steps/losses.py": "counts the arguments that a partial binds",
    "mmrewrite/analysis/steps/step_data.py": "which parameters a partial sets, called or not",
    "mmrewrite/codemod/site.py": "a name for it in what codemods write",
    "mmrewrite/plan/read_calls.py": "calls that the tool itself has written",
    "mmrewrite/source/jit_kinds.py": "which function a decorator compiles, by its text",
}
# Who looks at an assignment in an expression (`a := b`).
WALRUSES = {
    "codemods/mmcodemods/values/gather_value.py": "which names an expression binds",
    "codemods/mmmodernize/doubts/ambiguous_names.py": "which expressions may be names of modules",
    "codemods/mmmodernize/meshes/mesh_regions.py": "a mesh that an expression names can be no statement",
    "codemods/mmmodernize/meshes/partition_specs.py": "the specs in it are edited at their places",
    "codemods/mmmodernize/modules/passed_modules.py": "whether a module gets another name",
    "codemods/mmmodernize/text/text_patterns.py": "which texts a program puts together, as patterns",
    "mmrewrite/analysis/loops/dataflow.py": "what a statement of a loop writes and reads, not what it is",
    "mmrewrite/codemod/imports.py": "names that may be unbound where a codemod would write them",
    "mmrewrite/directives/arguments.py": "which arguments need brackets in a display",
    "mmrewrite/directives/calls.py": "which expressions need parentheses",
    "mmrewrite/source/branches.py": "the sides of a choice, for those that edit each",
    "mmrewrite/source/names.py": "the bindings of names, on which values rest",
}


def names_of(tree: ast.Module) -> set[str]:
    """The classes of syntax that a file names, its texts, and what it imports."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="ast"), attr=name):
                found.add(f"ast.{name}")
            case ast.Constant(value=str(text)):
                found.add(text)
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
    assert followers({"functools.partial", "jax.tree_util.Partial", "PARTIALS", "is_partial"}) == set(PARTIALS)


def test_assignments_in_expressions_are_followed_in_one_place() -> None:
    assert followers({"ast.NamedExpr"}) == set(WALRUSES)
