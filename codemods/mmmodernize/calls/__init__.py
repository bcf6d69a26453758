"""Calls, what they are given, and the definitions that code leads to."""
