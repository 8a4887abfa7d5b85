"""The front ends of encoders: Triton models that serve both generations of Paintera's client under its names.

`wire.encoder_front` has the names, `pixels` turns the inputs of a request into the encoder's input, `triton_model` runs
inside Triton, and `install` writes a front end into a model repository. docs/how-to/paintera.md explains it.
"""
