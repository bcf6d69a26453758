"""Which mesh, how many microbatches and which schedule: plans of one step compared by a model of its costs.

The runtime's document about the layers comes in (`traced`); `costs` reads it, `devices` has records of accelerators,
`model` prices one plan, `search` compares them, `output` says what was found.
"""
