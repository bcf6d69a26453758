"""Loops of layers, microbatches and scans: which call is the layer, and what flows from one iteration to the next.

A new form of the layer is a case in `layer_calls`; what a scan runs, `scans`; a body that becomes a function of its
own, `outlining`; which names statements assign and read, `dataflow`; loops that accumulate gradients,
`accumulation_loops`.
"""
