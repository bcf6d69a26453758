"""The classes of a program, what reading their attributes runs, and who uses which function.

An expression or a function comes in. Which classes it may be of is `object_classes`; which methods run unwritten,
`special_methods`; what cannot be read twice, `computed_attributes`; who calls a function, `function_uses`.
"""
