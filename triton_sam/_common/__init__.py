"""Helpers that are independent of Segment Anything: files, caches, backoff, progress, strict JSON, spans, text.

`bundle` finds the project's files in a checkout or in an installed wheel. `onnx_session` has the settings of ONNX
Runtime on a server, and is copied beside the local backend.
"""
