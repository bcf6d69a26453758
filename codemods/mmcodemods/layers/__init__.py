"""Codemods for loops and scans of layers.

The head of a loop is read in `_layer_loop`, the call that is the layer in `mmrewrite.analysis.loops.layer_calls`.
"""
