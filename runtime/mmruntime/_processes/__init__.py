"""What processes tell each other besides arrays: where they are, what they run, whether they live.

`start` starts them as `launchers` says, `exchange` carries short texts, `agreement` compares, `watch` ends all when one
dies. It knows no steps.
"""
