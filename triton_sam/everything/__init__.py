"""Automatic masks: a grid of clicks, and the filters of the official mask generators. Pure functions, without I/O.

`parameters` and `filters` are those of Meta's generators, `search` is a generator that requests embeddings and the
objects under some points, `parts` finds those by decodes, and `thresholds` reads a model's own thresholds from its
metadata.
"""
