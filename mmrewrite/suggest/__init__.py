"""Which mesh, how many microbatches and which schedule, and where the hints of a program without any belong.

The runtime's documents about a step and its layers come in (`traced`); a verdict, plans and perhaps a patch go out
(`output`). For a program without hints `unhinted` leads: `candidates` reads statements from syntax trees, `hinted`
writes comments in memory and has the codemods judge them, `places` keeps what they accept. `costs` reads what layers
cost, `devices` has records of accelerators, `model` prices one plan, `search` compares them, `hint_texts` writes one.

A new kind of accelerator is a record of `devices.toml`; what a plan may choose is in `model` and `search`; where a hint
may stand is in `candidates`.
"""
