"""The measurements of `triton-sam benchmark`.

`stages`, `compare`, `throughput`, `speculative` and `concepts` measure. `results` has rows of one form, which
`table` and `plot` show. `server_counts` reads the counts and times that a server reports.
"""
