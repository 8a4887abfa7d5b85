"""A plugin of napari: objects of images, stacks, time series and slides, by clicks, boxes, words or all at once.

`widget.py` has the windows. Four modules need neither napari nor Qt: `sources.py` reads planes of a layer,
`prompts.py` reads points and boxes, `requests.py` sends requests in its own thread, and `board.py` writes masks.
"""
