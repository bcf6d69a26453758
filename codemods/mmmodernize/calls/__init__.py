"""Calls, what they are given, and the definitions that code leads to.

`call_forms` has the forms of a call, `wide_reach` what code leads to, `components` answers that for many nodes at once.
"""
