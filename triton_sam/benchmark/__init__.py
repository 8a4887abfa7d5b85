"""The measurements of `triton-sam benchmark`.

`stages`, `compare`, `throughput`, `speculative`, `load` and `concepts` measure, `results` has rows of one form,
`table` and `plot` show them, and `server_counts` reads counts and times that a server reports.
"""
