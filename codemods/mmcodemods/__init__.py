"""The codemods that rewrite hints: one in each module, whose name and docstring are those that users see.

A hint at its site comes in, edits or a refusal go out; codemods never import one another. A new file is found by
itself. `_task`, `_constraint` and `_layer_loop` are what several share.
"""
