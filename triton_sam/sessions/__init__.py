"""The session models: programs inside Triton that keep embeddings, so that a click sends only an id and a prompt.

`image` is the session model, `video` the video model, `encoder_front` the front end of encoders for Paintera. Their
base is `python_model` (parameters, threads, admission, metrics); `tasks` follows a request from arrival to answer,
`bls` calls other models, `images` caches images by hash, `concepts` searches them for words with the models of
`concept_models`, and `configs` writes config.pbtxt and `model.py`. `wire` has the names that clients and server share.
docs/reference/session-models.md explains the models.
"""
