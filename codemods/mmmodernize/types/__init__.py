"""The classes that a value may have: an array, a module, an object of a library.

A new library of which it is known what it does is a line in `libraries`.
"""
