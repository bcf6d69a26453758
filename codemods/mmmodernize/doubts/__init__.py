"""Uses that may be of an old name: they are reported, not edited.

A module comes in, reports go out: names that may be something else (`ambiguous_names`), names in strings
(`names_in_strings`), names that are put together (`looked_up_names`), calls with keywords that are gone
(`held_functions`), names newer than an upgrade (`newer_uses`).
"""
