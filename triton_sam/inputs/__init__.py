"""Images, prompts and embeddings from the caller, checked once before they are used.

`formats` is the table of image formats, `resample` resizes bytes as torch does, to the bit, `remote` reads files at
URLs, and `video` has the sources of frames.
"""
