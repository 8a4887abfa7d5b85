"""Measure the quality of a served model, with simulated clicks and boxes on images with known objects.

Every request passes through the client and the server. `triton-sam evaluate` is the command for this package.
docs/how-to/evaluate.md explains how clicks are simulated and defines each metric. The `evaluate` extra is required.
"""
