"""The measurements of `triton-sam benchmark`.

`latency`, `throughput` and `speculative` measure a `target`. `results` has rows of one form and their table, and
`plot` draws them.
"""
