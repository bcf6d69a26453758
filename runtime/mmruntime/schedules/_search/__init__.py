"""The search for an order under given costs and a bound on memory.

`auto` is what users call; `objective` says what is sought, `list_scheduling` makes orders, and `local_search` improves
them. `request` is a search that waits for the costs of stages.
"""
