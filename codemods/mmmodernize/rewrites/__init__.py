"""The codemods of `mmrewrite modernize`: one in each module, found by itself, with the docstring that users see.

A name that only moved is a line in `names.move_names`, once the index has it. Where no source text is exact, the result
calls a function of `mmruntime.compat`.
"""
