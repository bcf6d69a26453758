"""Compiled steps: how they are compiled, their loss and gradient, and what they are given.

A kind of jit or pmap has its full name in `COMPILERS` of `mmrewrite.source.functions`, its options in `compilers`, the
forms in which it is called in `jit_calls`, and what its callers pass in a convention of `mmruntime._calling`. A
gradient is found by `gradients`, the function that is differentiated by `losses`, its batch by `batch_arguments`.
"""
