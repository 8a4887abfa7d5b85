"""Modules that other programs load, each named after its program.

`cvat` has the functions for CVAT's agents, and `napari` is a plugin. `notebook` is a widget over `clicking`, which
sends only the newest position of the mouse.
"""
