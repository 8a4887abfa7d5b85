"""The session model: a Triton model that keeps the embeddings, so that a click carries only an id and a prompt.

`contract` is what both sides know, `triton_model` is what runs inside Triton; docs/session-models.md explains it.
"""
