"""The settings of a local server, for `LocalServer` and `triton-sam serve`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from triton_sam.errors import ConfigurationError


@dataclass(frozen=True)
class ServerSettings:
    """The settings of a local server.

    Args:
        models: names of the models to load; models that they call are also loaded. None loads every model that has
            weights.
        host: the IPv4 address or host name to listen on. The default is loopback, because Triton has no authentication.
        http_port: port of the HTTP endpoint; 0 chooses a free port.
        grpc_port: port of the gRPC endpoint; 0 chooses a free port.
        metrics_port: port of the Prometheus endpoint; 0 chooses a free port.
        tritonserver: folder of another Triton installation (with `bin/tritonserver` and `backends`); None uses the
            installation of the nvidia-pytriton wheel.
        backend_directory: another folder of backends; None uses those of the installation.
        log_file: the file to which the server's log is appended; None writes a temporary file, which is removed when
            the server stops.
        log_verbose: Triton's `--log-verbose` level; 0 turns verbose lines off.
        startup_timeout: seconds to wait until all models are ready.
        stop_timeout: seconds for which running requests may continue after stop(). Triton also waits this long for
            idle connections that clients keep open.
        admin: accept requests that load and unload models (`triton-sam reload`), share memory, or change traces and
            logging. By default Triton refuses them, because a web page in a local browser can send requests to
            loopback, and a request to load a model may contain a program.
        heal: restart Triton, on the same ports, when it dies after it was ready, or when the process of one of its
            models dies. Clients retry their requests meanwhile.
        verify: leave out models whose files differ from their SHA256SUMS; None: unless $TRITON_SAM_VERIFY is 0.
        decoder_in_session: run the decoders of image session models in the session models' processes, which copies
            less data per click; None: if $TRITON_SAM_DECODER_IN_SESSION is 1, or unset and the server runs on a CPU
            without `tritonserver` and `backend_directory`. The parameter `decoder_in_session` in config.pbtxt takes
            precedence.
    """

    models: Sequence[str] | None = None
    host: str = "127.0.0.1"
    http_port: int = 0
    grpc_port: int = 0
    metrics_port: int = 0
    tritonserver: str | Path | None = None
    backend_directory: str | Path | None = None
    log_file: str | Path | None = None
    log_verbose: int = 0
    startup_timeout: float = 300.0
    stop_timeout: float = 1.0
    admin: bool = False
    heal: bool = True
    verify: bool | None = None
    decoder_in_session: bool | None = None
    extra_args: Sequence[str] = ()

    def __post_init__(self) -> None:
        if isinstance(self.models, str):
            raise ConfigurationError(f"models must be a list of names, not the string {self.models!r}")
