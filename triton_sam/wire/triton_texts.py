"""The messages of Triton, of its backends and of gRPC that codes and statuses do not distinguish.

Triton's statuses differ between versions and protocols, so these patterns are the only way to recognise some errors.
All of them are in this module; test/served/test_triton_texts.py makes a real Triton send them. The errors of our own
models begin with a code instead, see contract.read_error().
"""

from __future__ import annotations

import re

NOT_READY = re.compile(r"unknown model|model .*not found|no available version|not (at )?ready( state)?")
"""A model is not loaded."""
PROCESS_IS_GONE = re.compile("is not healthy")
"""The process of a Python model has ended: "Stub process 'sam2_decoder_0_0' is not healthy."."""
QUEUE_IS_FULL = re.compile("maximum queue size")
"""A model has reached its ``max_queue_size``."""
NO_ROOM = re.compile("shared memory pool|out of memory|failed to allocate|smaller than requested bytes", re.IGNORECASE)
"""A model or the Python backend lacks memory. The last one is ONNX Runtime's, for an arena with a limit."""
SERVER_ENDS = re.compile("stopped accepting new inference requests")
"""The server is shutting down, and has not computed the request."""
LOADS_NO_MODELS = re.compile("explicit model load")
"""The server does not accept requests to load models."""
RESTRICTED = re.compile(" is restricted, expecting header")
"""A part of the API is closed. The message names "This API", and over gRPC "This protocol"."""
NOT_CONNECTED = re.compile("failed to connect to all|errors resolving|(dns|name) resolution", re.IGNORECASE)
"""gRPC found no server."""
UNTRUSTED_CERTIFICATE = re.compile("(?:CERTIFICATE_VERIFY_FAILED: |(?=Hostname Verification Check))([^:]+)")
"""gRPC does not trust the certificate of the server. The group is the reason, for example "certificate has expired"."""
DEADLINE = re.compile("timeout expired", re.IGNORECASE)
"""tritonclient: the deadline of a gRPC call has passed."""
