"""The measured proof of a rewrite: both programs are run, and what they return is compared.

An entry point comes in, a verdict goes out. `programs` runs both, within the bounds of `mirror.limits`; `judge` says
which differences are rounding, `verify` tells the command. How one program is called, with which arguments and seeds,
is `mmruntime._commands.verify`. The original of what was rewritten in place is `before`; which places an entry point
reaches, `coverage`.
"""
