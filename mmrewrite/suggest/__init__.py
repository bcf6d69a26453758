"""Which mesh, how many microbatches and which schedule, and where the hints of a program without any belong.

The runtime's documents about a step and its layers come in (`comparison`); a verdict, plans and perhaps a patch go out
(`output`). For a program without hints `new_hints` leads: `candidates` reads statements from syntax trees,
`hint_trials` writes comments in memory and has the codemods judge them, `places` keeps what they accept. `costs` reads
what layers cost, `devices` has records of accelerators, `model` prices one plan, `search` compares them, `hint_texts`
writes one, `history` remembers that one was better.

A new kind of accelerator is a record of `devices.toml`; what a plan may choose is in `model` and `search`; where a hint
may stand is in `candidates`. What would save memory is `savings`.
"""
