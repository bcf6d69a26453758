"""How arrays get from one submesh to another.

A plan of layouts comes in, a `Transport` sends by it: `transfer` within a process, `across` between processes, over one
of the channels that `channels` lists. `parcels` says what is sent, `pieces` how arrays are cut for it. `crossing` is
one transfer between processes; each channel is a file named for it.
"""
