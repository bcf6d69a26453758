"""Compiling the programs of a step, moving arrays, running instructions."""
