"""The connection to a Triton server: HTTP through urllib3, gRPC through tritonclient.

`base` is the Protocol that clients expect, `triton` adds the deadline and retries, `threads` runs calls that their
futures cancel on the wire. HTTP is `kserve` over `timed_sockets`, gRPC is `grpc_client`. `failures` converts errors,
and `onnx` runs models in this process, for verify and benchmarks.
"""

from .base import BaseTransport, Tensors
from .failures import RETRY_PAUSE, map_error
from .options import GRPC_GRACE
from .threads import Result
from .timed_sockets import CONNECT_TIMEOUT
from .triton import Transport
from .url import ServerUrl, parse_url

__all__ = [
    "CONNECT_TIMEOUT",
    "GRPC_GRACE",
    "RETRY_PAUSE",
    "BaseTransport",
    "Result",
    "ServerUrl",
    "Tensors",
    "Transport",
    "map_error",
    "parse_url",
]
