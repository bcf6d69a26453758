"""Jaxprs as the passes see them: building, inlining, equality, cost.

`ir` is the step that passes take and give. What a primitive does to dimensions and to sums is said once, in
`primitives`. `rewrite` says which equations are needed, renames variables, makes equations of a function and opens
calls, `carry` says what a loop adds up. `canonical_forms` compares programs, `content` names them, `flops` costs them,
`wide_results` keeps short floats from being rounded before they are added up.
"""
