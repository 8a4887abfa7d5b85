"""Annotate many images: sources and prompts, a resumable folder of results, writers.

`job` describes a run, and `sources` and `reading` read its input. `folder` has the manifest and the shards, which are
complete or absent. `run` fills the shards with a limited number of threads, `ray_engine` with Ray. `writers` has the
table of output formats, `large_writers` the table for large images, whose tiles are the items of a run (`large_*`).
"""
