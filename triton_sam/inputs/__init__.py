"""Images, prompts and embeddings from the caller, validated once before use.

`formats` is the table of image formats, `resample` resizes bytes exactly as torch does, `remote` reads files at URLs,
and `video` has the sources of frames.
"""
