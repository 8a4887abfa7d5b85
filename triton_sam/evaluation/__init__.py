"""Measure how well a served model segments, with simulated clicks and boxes on images whose objects are known.

Every request passes through the client and the server. `triton-sam evaluate` is the command for this package, and
docs/how-to/evaluate.md explains how clicks are simulated and defines each metric. It needs the `evaluate` extra.
"""
