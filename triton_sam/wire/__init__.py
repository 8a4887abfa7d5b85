"""The messages between clients and servers: requests, answers, names of tensors.

`contract` is for session models (names, formats, error codes), `pair` for model pairs, `video` for video models, and
`encoder_front` for encoders that Paintera calls.
"""
