"""The session model: a Triton model that keeps embeddings, so that a click sends only an id and a prompt.

`wire.contract` has the names that clients and server share, `image.triton_model` runs inside Triton, and
`image.config` writes its config.pbtxt. docs/reference/session-models.md explains it.
"""
