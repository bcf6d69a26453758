"""What an expression may be an object of, and what reading it runs.

An expression or a function comes in. What types its annotations say is `annotations`; what cannot be read twice, since
properties or special methods of the project make it anew, `computed_attributes`.
"""
