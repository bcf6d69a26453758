"""The classes that a value may have: an array, a module, an object of a library.

An expression comes in, classes go out (`value_classes`); modules and variables of Flax are `nnx`, arrays that come from
elsewhere `possible_arrays`. A function that computes with arrays is a line in `array_functions`, a library that does
nothing with a mesh one in `libraries`.
"""
