"""Take `frobnicate` from `acme.fast`.

    acme.frobnicate(x)
    ->  acme.fast.frobnicate(x)

To check: nothing; it is the same function.

Refused: nothing.
See https://example.com/acme for both.
"""

from mmmodernize.codemod import ModernizeCodemod


class MoveFrobnicate(ModernizeCodemod):
    moved = {"acme.frobnicate": "acme.fast.frobnicate"}
