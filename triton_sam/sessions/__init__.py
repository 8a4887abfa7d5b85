"""The session model: a Triton model that keeps the embeddings, so that a click carries only an id and a prompt.

`wire.contract` holds the names that both sides know, `image.triton_model` runs inside Triton, and
`image.config` writes its config.pbtxt. docs/reference/session-models.md explains it.
"""
