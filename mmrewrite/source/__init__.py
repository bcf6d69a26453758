"""Source text: decoding, names, newer syntax, spans, line breaking. Knows nothing of hints."""
