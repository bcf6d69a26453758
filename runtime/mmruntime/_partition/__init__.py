"""The passes between a trace and a list of instructions: place, segment, shard, schedule."""
