"""Jaxprs as the passes see them: building, inlining, equality, cost.

`ir` is the form that passes take and return. What a primitive does to dimensions and to sums is `primitives`, its FLOPs
are `flops`, its effects `effects`; names of equal programs are `content`.
"""
