"""From a `Step` to a `Placement`: which submeshes run each equation, and where each input lives.

`place` is the pass. What has no task follows what it reads or makes; equations with bodies over several submeshes are
taken apart by `take_apart`, sums over several submeshes (tied weights) by `partial_sums`. Loops are cut by `cut_loop`,
conditionals by `cut_conditional`; optimizer state goes with its parameter by `namesakes`, and what lies away from its
stage is told by `pulled_state`.
"""
