"""Every instance of a concept in an image: the request, the tokens of a text, and the choice of instances.

`query` is a checked request, `tokenizer` makes tokens, and `instances` turns outputs of the detector into instances
and decides which of them are new in a video.
"""
