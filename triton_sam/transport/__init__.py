"""The connection to a Triton server: HTTP through urllib3, gRPC through tritonclient.

`base` is the Protocol that clients expect, `triton` adds the deadline and retries, `threads` runs calls that their
futures cancel on the wire. HTTP is `kserve` over `timed_sockets`, gRPC is `grpc_client`. `failures` converts errors,
and `onnx` runs models in this process, for verify and benchmarks.
"""

from .base import BaseTransport, Tensors
from .triton import Transport
from .url import ServerUrl, parse_url

__all__ = ["BaseTransport", "ServerUrl", "Tensors", "Transport", "parse_url"]
