"""Every instance of a concept in an image: the request, the tokens of a text, and the choice of instances.

`query` has the checked request, `tokenizer` the tokens; `instances` turns outputs of the detector into instances and
finds those that are new in a video.
"""
