"""From a placed step to programs, which run without waiting for other submeshes, and what they keep for each other.

`segment` cuts; `residuals` says what backward programs make again, `split_backward` which are cut in two.
"""
