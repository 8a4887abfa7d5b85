"""Annotate many images: sources and prompts, a folder of results that an interrupted run resumes, writers.

`job` describes a run, `sources` and `reading` read its input, `folder` has the manifest and shards that
are complete or absent, and `run` fills the shards by bounded threads (`ray_engine` by Ray). `writers` is the table
of output formats, `large_writers` that of large images, whose tiles are the items of a run (`large_*`).
"""
