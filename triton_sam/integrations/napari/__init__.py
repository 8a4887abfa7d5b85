"""A plugin of napari: objects of images, stacks, time series and slides, by clicks, boxes, words or all at once.

`widget.py` is the part with windows. The others need neither napari nor Qt: `sources.py` reads planes of a layer,
`prompts.py` the points and boxes, `requests.py` asks the server in a thread of its own, and `board.py` writes masks.
"""
