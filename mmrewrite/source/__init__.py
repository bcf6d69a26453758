"""Source text: decoding, names, spans, line breaking. Knows nothing of hints.

Bytes come in. `text` decodes and parses with the Python that runs the tool, `names` resolves names, `brackets` says
where arguments and commas stand, `calls` what a call gives which function, `functions` what a definition says (which
parts of it are texts, say), `line_breaking` and `import_order` how text is laid out. A function that compiles is a
record of `jit_kinds`; `libcst_parser` parses what changes; whose fault a failure is says `failure`.
"""
