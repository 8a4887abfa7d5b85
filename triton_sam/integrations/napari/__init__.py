"""A plugin of napari: objects of images, stacks, time series and slides, by clicks, boxes, words or all at once.

`widget.py` has the window. The modules without Qt: `sources.py` reads planes of a layer, and points and boxes;
`requests.py` sends requests in its own thread, and `jobs.py` has their long ones; `layers.py` writes masks.
"""
