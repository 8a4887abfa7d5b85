"""The settings of a local server, and the options of tritonserver that every deployment has by default.

The user's options take precedence. `triton-sam container` and the local server add the defaults, so the compose file,
the Helm chart and scripts/run_triton.sh do not repeat them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from triton_sam.errors import ConfigurationError
from triton_sam.repository.folder import RepositoryModel
from triton_sam.transport.options import check_number


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
        for name, what in {"models": "names", "extra_args": "options"}.items():
            if isinstance(given := getattr(self, name), (str, bytes, Path)):
                raise ConfigurationError(f"{name} must be a list of {what}, not {given!r}")
        for name in ("http_port", "grpc_port", "metrics_port", "log_verbose"):
            check_number(name, getattr(self, name), whole=True)
        for name in ("startup_timeout", "stop_timeout"):
            check_number(name, seconds := getattr(self, name))
            if not seconds >= 0:  # NaN is not
                raise ConfigurationError(f"{name} must be at least 0 seconds, not {seconds}")


METRICS = "--metrics-config"
CUDA_POOL = "--cuda-memory-pool-byte-size"
CACHE_BYTES = "cache_bytes"
"""The parameter of session models that limits their cache of embeddings."""
LOAD_THREADS = "--model-load-thread-count"
NO_COMPLETION = "--disable-auto-complete-config"
BACKEND = "--backend-config"
SHARED_THREADS = "onnxruntime,enable-global-threadpool"
MODEL_THREADS = "intra_op_thread_count"
POOL_FOR_REQUESTS = 512 << 20
"""Bytes of GPU memory for the tensors of running requests, in addition to the cached embeddings of session models.

A session model processes up to 24 images at a time, which are 384 MiB of SAM2's embeddings.
"""
_METRICS = {
    # Medians and quantiles for the dashboard. Each pair is a quantile and its error.
    "summary_latencies": "true",
    "summary_quantiles": "0.5:0.05,0.95:0.005,0.99:0.001",
}
_LARGEST = (1 << 63) - 1
"""Triton ends if a number does not fit into 64 bits."""


def server_options(folders: Sequence[RepositoryModel], given: Sequence[str]) -> list[str]:
    """Return the options of this module for every server. The user's options replace ours."""
    return [*cuda_pool_options(folders, given), *load_options(given), *metrics_options(given)]


def has_gpu() -> bool:
    """Return whether this machine or container has an NVIDIA GPU. /dev/dxg is the GPU under WSL2."""
    return any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/dxg").exists()


def load_options(given: Sequence[str]) -> list[str]:
    """Return the option that makes Triton load models one by one, if there is a GPU.

    NVIDIA's ONNX Runtime backend opens all models in one process. While one of them captures a CUDA stream, others must
    not synchronise the device. With ONNX Runtime 1.31 on an H200, two of 16 models failed to load concurrently
    ("operation not permitted when stream is capturing").
    """
    return [f"{LOAD_THREADS}=1"] if has_gpu() and not values_of(given, LOAD_THREADS) else []


def completion_options(folders: Sequence[RepositoryModel], given: Sequence[str]) -> list[str]:
    """Return the option that disables the completion of config.pbtxt files, if all of them are complete.

    For the completion, Triton starts a second process for each Python model, which takes over 1 s.
    """
    return [NO_COMPLETION] if all(map(needs_no_completion, folders)) and NO_COMPLETION not in given else []


def needs_no_completion(folder: RepositoryModel) -> bool:
    return bool(folder.config_is_complete and (folder.config.backend or folder.config.platform))


def thread_options(folders: Sequence[RepositoryModel], given: Sequence[str]) -> list[str]:
    """Return the option that makes all models of NVIDIA's ONNX Runtime backend share their threads on a CPU.

    Otherwise, each model has its own threads, which spin for a while after their work. The models of a video then slow
    each other down: 9.7 s for a video instead of 6.4 s on two cores (release 24.10). The same option of
    the user replaces ours. If the config.pbtxt of one model sets a number of threads, which shared threads would
    ignore, every model keeps its own.
    """
    is_set = any(value.startswith(f"{SHARED_THREADS}=") for value in values_of(given, BACKEND))
    if is_set or has_gpu() or any(MODEL_THREADS in folder.config.parameters for folder in folders):
        return []
    return [f"{BACKEND}={SHARED_THREADS}=1"]


def values_of(options: Sequence[str], name: str) -> list[str]:
    """Return the values of an option in their order, each written as `--name=value` or as two arguments."""
    values = []
    for index, word in enumerate(options):
        given, equals, text = word.partition("=")
        if given == name:
            values.append(text if equals else "".join(options[index + 1 : index + 2]))
    return values


def metrics_options(given: Sequence[str]) -> list[str]:
    """Return the options for quantiles in the metrics, unless the user sets them."""
    keys = {value.partition("=")[0] for value in values_of(given, METRICS)}
    return [f"{METRICS}={key}={value}" for key, value in _METRICS.items() if key not in keys]


def cuda_pool_options(folders: Sequence[RepositoryModel], given: Sequence[str]) -> list[str]:
    """Return the options for the size of Triton's GPU memory pool, for each GPU with cached embeddings.

    Python models pass GPU tensors through this pool, so it contains the cached embeddings of session models. Triton's
    default of 64 MiB holds three images of SAM2; after that, each click would allocate GPU memory. The pool gets the
    `cache_bytes` of all models of a GPU, plus POOL_FOR_REQUESTS. It must never be full when a Python model uses it for
    the first time, because Triton's Python backend then ends the whole server (a null pointer in ShareCUDAMemoryPool;
    releases 24.10 to 26.06). Triton allocates the pool when it starts; on a host without a GPU it ignores the option
    (tested with release 24.10).

    Args:
        given: the user's options. If they set a pool, the user decides.
    """
    if values_of(given, CUDA_POOL):
        return []
    sizes: dict[int, int] = {}
    for folder in folders:
        text = folder.config.parameters[CACHE_BYTES].string_value if CACHE_BYTES in folder.config.parameters else ""
        if text.strip().isdecimal():
            for gpu in _gpus(folder):
                sizes[gpu] = sizes.get(gpu, POOL_FOR_REQUESTS) + int(text)
    return [f"{CUDA_POOL}={gpu}:{min(size, _LARGEST)}" for gpu, size in sorted(sizes.items())]


def _gpus(folder: RepositoryModel) -> list[int]:
    """Return the GPUs of a model's instances; by default, GPU 0."""
    groups = list(folder.config.instance_group)
    if groups and all(group.kind == group.KIND_CPU for group in groups):
        return []
    return sorted({gpu for group in groups for gpu in group.gpus}) or [0]
