"""The session models: programs inside Triton that keep embeddings, so that a click sends only an id and a prompt.

`wire` has the names that clients and server share, `image.triton_model` and `video.triton_model` run inside Triton on
the base in `python_model`, and `configs` writes their config.pbtxt. docs/reference/session-models.md explains them.
"""
