"""Automatic masks: a grid of clicks, and the filters of the official mask generators. Pure functions, without I/O.

`parameters` has the parameters of Meta's generators, and reads a model's own thresholds from its metadata. `search` is
a generator that requests embeddings and the objects under some points, and filters these objects.
"""
