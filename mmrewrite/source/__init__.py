"""Source text: decoding, names, newer syntax, spans, line breaking. Knows nothing of hints.

Bytes come in. `text` decodes and parses, `newer_syntax` parses what this Python cannot, `names` resolves names,
`brackets` says where arguments and commas stand, `line_breaking` and `import_order` how text is laid out.
"""
