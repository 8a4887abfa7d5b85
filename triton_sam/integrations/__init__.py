"""Modules that other programs load, each named after its program.

`cvat` and `cvat_tracking` have functions for CVAT's agents, `notebook` is a widget over `clicking`, which sends only
the newest position, and `napari` is a plugin.
"""
