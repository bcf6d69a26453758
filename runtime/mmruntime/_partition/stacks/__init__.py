"""Arrays that hold the layers of several stages, along one dimension: each becomes one array for each stage.

`find_stacks` says which; `cut_stacks` is the pass.
"""
