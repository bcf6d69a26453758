"""What processes tell each other besides arrays: where they are, what they run, whether they live.

`start` starts them as `launchers` says, `exchange` carries short texts, `agreement` compares. `progress` is where this
process is in its steps, `waits` judges who waits for whom and for how long, `watch` ends all when one has died or waits
for too long, and says why. Which channel carries arrays is read in `transports`, ports in `ports`. `tree` carries signs
of life.
"""
