"""LocalServer: a real Triton as a child of this program, without Docker."""

from __future__ import annotations

import atexit
import secrets
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from triton_sam.errors import ConfigurationError, LocalServerError, PortInUseError
from triton_sam.local_server import supervisor
from triton_sam.local_server.installation import Triton, prepare_triton
from triton_sam.local_server.ports import choose_ports, option_of, port_in_use, reachable_host, resolve_host
from triton_sam.local_server.probe import Probe, ServedModel, failed_models, taken_port
from triton_sam.local_server.process import SupervisedTriton
from triton_sam.repository.selection import ModelFolder, select_models

POLL_SECONDS = 0.02
PORT_ATTEMPTS = 3
_ADMIN_PARTS = "shared-memory,trace,logging"
_MAX_SHM_GROWTH = 64 << 20
"""Bytes. Every growth maps a model's whole region anew and keeps the old mappings, which Triton's 1 MiB does for each
image: with 64 MiB an image is encoded 40 ms sooner (2 cores, built-in model), and 40 images leave the server's resident
size at 860 MiB in place of 1,480."""


class LocalServer:
    """A Triton server on this machine that lives no longer than this program.

    Examples:
        ```python
        with LocalServer("model_repository") as server:
            client = SAM2TritonClient(server.http_url)
        ```

    Args:
        model_repository: the folder with one folder per model.
        models: the models to load, with those they call; None loads every model that has weights.
        host: the IPv4 address or name to listen on. Loopback by default: Triton asks nobody for a password.
        http_port: port of the HTTP endpoint; 0 takes a free one.
        grpc_port: port of the gRPC endpoint; 0 takes a free one.
        metrics_port: port of the Prometheus endpoint; 0 takes a free one.
        tritonserver: another installation (`DIR/bin/tritonserver`, `DIR/backends`) instead of the wheel's.
        backend_directory: another folder of backends.
        log_file: where the server's log is appended; None keeps it in a file that goes with the server.
        log_verbose: Triton's `--log-verbose` level; 0 is off.
        startup_timeout: seconds to wait until all models are ready.
        stop_timeout: seconds that running requests get to finish when the server is stopped. Triton waits as long
            for idle connections that clients keep open.
        admin: accept requests to load and unload models (`triton-sam reload`), to share memory, and to change traces
            and logging. Without it Triton refuses them: a web page in a browser of this machine can send requests to
            loopback, and a model that is loaded with its files in the request is a program.
        extra_args: further arguments for tritonserver.
    """

    def __init__(
        self,
        model_repository: str | Path,
        *,
        models: Sequence[str] | None = None,
        host: str = "127.0.0.1",
        http_port: int = 0,
        grpc_port: int = 0,
        metrics_port: int = 0,
        tritonserver: str | Path | None = None,
        backend_directory: str | Path | None = None,
        log_file: str | Path | None = None,
        log_verbose: int = 0,
        startup_timeout: float = 300.0,
        stop_timeout: float = 1.0,
        admin: bool = False,
        extra_args: Sequence[str] = (),
    ) -> None:
        if isinstance(models, str):
            raise ConfigurationError(f"models must be a list of names, not the string {models!r}")
        self.model_repository = Path(model_repository).expanduser().absolute()
        self.host = host
        self._models = models
        self._wanted_ports = {"http": http_port, "grpc": grpc_port, "metrics": metrics_port}
        self._tritonserver = Path(tritonserver).expanduser() if tritonserver else None
        self._backend_directory = Path(backend_directory).expanduser() if backend_directory else None
        self._wanted_log = Path(log_file).expanduser().absolute() if log_file else None
        self._log_verbose = int(log_verbose)
        self._startup_timeout = startup_timeout
        self._stop_timeout = stop_timeout
        self._admin = admin
        self._extra_args = list(extra_args)

        self._ports: dict[str, int] = {}
        self._run: SupervisedTriton | None = None

    def __enter__(self) -> LocalServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = f"pid {self.pid}, {self.http_url}" if self.is_alive() else "not running"
        return f"<LocalServer {self.model_repository} ({state})>"

    def start(self) -> LocalServer:
        """Start the server and return when every model is ready.

        Raises:
            RepositoryError: no such repository or model, or a model without weights.
            PortInUseError: another process listens on a port.
            MissingDependencyError: the nvidia-pytriton wheel is not installed.
            ConfigurationError: an argument that cannot work.
            LocalServerError: the server died, a model failed to load (with the server's reason), or the time is up.
        """
        if self.is_alive():
            raise LocalServerError("this server runs already")
        self.stop()  # what a server that died by itself left
        folders = select_models(self.model_repository, self._models)
        for attempts_left in reversed(range(PORT_ATTEMPTS)):
            try:
                self._start_once(folders)
            except PortInUseError as error:
                # A free port that was picked can be taken by another process before Triton listens on it.
                if attempts_left == 0 or not self._was_picked(error):
                    raise
            else:
                break
        atexit.register(self.stop)
        return self

    def stop(self) -> None:
        """Stop the server; running requests get `stop_timeout` seconds. Does nothing when it does not run."""
        if self._run is not None:
            self._run.stop()
            atexit.unregister(self.stop)

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait until the server ends by itself; return its exit status, or None after `timeout` seconds."""
        if self._run is None:
            raise LocalServerError("the server was not started")
        return self._run.wait(timeout)

    def is_alive(self) -> bool:
        """True while the server process runs."""
        return self._run is not None and self._run.exit_status is None

    @property
    def pid(self) -> int | None:
        """The process id of tritonserver; None before the first start."""
        return self._run.pid if self._run else None

    @property
    def http_url(self) -> str:
        """Where HTTP clients find it, such as http://127.0.0.1:8000."""
        return f"http://{self._reachable_host()}:{self._port('http')}"

    @property
    def grpc_url(self) -> str:
        """Where gRPC clients find it, such as grpc://127.0.0.1:8001."""
        return f"grpc://{self._reachable_host()}:{self._port('grpc')}"

    @property
    def metrics_url(self) -> str:
        """Where Prometheus finds it, such as http://127.0.0.1:8002/metrics."""
        return f"http://{self._reachable_host()}:{self._port('metrics')}/metrics"

    @property
    def log(self) -> str:
        """The last 64 KiB of the server's log, also after it has stopped."""
        return self._run.log if self._run else ""

    @property
    def log_path(self) -> Path | None:
        """The file that the server writes its log to; None before the first start."""
        return self._run.log_path if self._run else None

    @property
    def log_place(self) -> tuple[Path, int] | None:
        """`log_path` and the bytes of earlier servers that it held when this one began; None before the first start."""
        run = self._run
        return (run.log_path, run.log_start) if run else None

    def served_models(self) -> list[ServedModel]:
        """Ask the server which models it has ready and where each runs."""
        return self._probe().served_models()

    def server_version(self) -> str:
        """Ask the server for Triton's version, such as 2.51.0."""
        return self._probe().server_version()

    def _start_once(self, folders: Sequence[ModelFolder]) -> None:
        address = resolve_host(self.host)
        self._ports = choose_ports(address, self._wanted_ports)
        identity = f"triton-sam-{secrets.token_hex(4)}"
        run_directory = Path(tempfile.mkdtemp(prefix="triton-sam-"))
        try:
            triton = prepare_triton(run_directory, self._tritonserver, self._backend_directory)
            self._run = SupervisedTriton(
                self._command(triton, address, identity, folders, run_directory),
                triton.environment,
                run_directory=run_directory,
                log_path=self._wanted_log or run_directory / "tritonserver.log",
                shm_prefix=_shm_prefix(identity),
                grace_seconds=self._stop_timeout,
            )
            self._run.learn_pid()
            self._wait_until_ready(self._run, identity, [folder.name for folder in folders])
        except BaseException:  # Ctrl-C during the start as well
            self.stop()
            shutil.rmtree(run_directory, ignore_errors=True)
            raise

    def _command(
        self, triton: Triton, address: str, identity: str, folders: Sequence[ModelFolder], run_directory: Path
    ) -> list[str]:
        command = [
            str(triton.executable),
            f"--id={identity}",
            f"--backend-directory={triton.backend_directory}",
            f"--cache-directory={triton.cache_directory}",
            *(self._open_to_all(folders) if self._admin else self._closed(folders, run_directory)),
            # A model that fails is reported with its reason by the repository index, which needs a live server.
            "--exit-on-error=false",
            f"--exit-timeout-secs={max(1, round(self._stop_timeout))}",
            f"--backend-config=python,shm-region-prefix-name={_shm_prefix(identity)}",
            f"--backend-config=python,shm-growth-byte-size={_shm_growth()}",
            f"--log-verbose={self._log_verbose}",
        ]
        for service, port in self._ports.items():
            command += [f"--{service}-address={address}", f"--{service}-port={port}"]
        if not _has_nvidia_gpu():
            command.append("--allow-gpu-metrics=false")  # saves lines of NVML and DCGM errors
        if triton.from_wheel and all(folder.config_is_complete for folder in folders):
            # Nothing to complete: this saves a second stub process per model, more than a second each.
            command.append("--disable-auto-complete-config")
        return command + self._extra_args

    def _open_to_all(self, folders: Sequence[ModelFolder]) -> list[str]:
        return [
            f"--model-repository={self.model_repository}",
            "--model-control-mode=explicit",
            *(f"--load-model={folder.name}" for folder in folders),
        ]

    def _closed(self, folders: Sequence[ModelFolder], run_directory: Path) -> list[str]:
        """Return options with which Triton loads these models and no others, and takes no orders."""
        # Without model control Triton loads all of a repository: here is one of the wanted models alone. (Restricting
        # "model-repository" instead would take the list of models from clients, too.)
        repository = run_directory / "models"
        repository.mkdir()
        for folder in folders:
            (repository / folder.name).symlink_to(folder.path)
        # A key that nobody knows. Triton does not take the same part twice, so what the caller asks for goes first.
        key = f"{_ADMIN_PARTS}:triton-sam={secrets.token_hex(16)}"
        options = [f"--http-restricted-api={key}", f"--grpc-restricted-protocol={key}"]
        given = {argument.partition("=")[0] for argument in self._extra_args}
        return [
            f"--model-repository={repository}",
            "--model-control-mode=none",
            *(option for option in options if option.partition("=")[0] not in given),
        ]

    def _wait_until_ready(self, run: SupervisedTriton, identity: str, wanted: Sequence[str]) -> None:
        probe = self._probe()
        deadline = time.monotonic() + self._startup_timeout
        while time.monotonic() < deadline:
            if run.exit_status is not None:
                raise self._death(run)
            # Triton answers when all models are loaded or have failed. The name tells our server from one that
            # took the port at the last moment.
            index = probe.index() if probe.server_name() == identity else None
            if index is not None:
                failures = failed_models(index, wanted)
                if failures:
                    raise LocalServerError(_describe(failures))
                return
            time.sleep(POLL_SECONDS)
        excerpt = run.log_excerpt()
        raise LocalServerError(f"the server was not ready after {self._startup_timeout:g} s{excerpt}")

    def _death(self, run: SupervisedTriton) -> LocalServerError:
        service = taken_port(run.log, self._ports)
        if service is not None:
            return port_in_use(option_of(service), self._ports[service])
        how = f"exit status {run.exit_status}"
        return LocalServerError(f"the server ended while it started ({how}){run.log_excerpt()}")

    def _was_picked(self, error: PortInUseError) -> bool:
        named = [port for port in self._wanted_ports.values() if port]
        return not any(f" {port}:" in str(error) for port in named)

    def _probe(self) -> Probe:
        return Probe(self._reachable_host(), self._port("http"))

    def _reachable_host(self) -> str:
        return reachable_host(resolve_host(self.host))

    def _port(self, service: str) -> int:
        port = self._ports.get(service) or self._wanted_ports[service]
        if not port:
            raise LocalServerError("the server was not started: its port is not known yet")
        return port


def _describe(failures: dict[str, str]) -> str:
    return "; ".join(f"model {name!r} failed to load: {reason}" for name, reason in failures.items())


def _shm_prefix(identity: str) -> str:
    return f"{supervisor.SHM_FAMILY}{identity.rsplit('-', 1)[-1]}_"


def _shm_growth() -> int:
    """Return by how many bytes a model's shared memory grows: little where there is little, as in a container."""
    return max(1 << 20, min(_MAX_SHM_GROWTH, shutil.disk_usage(supervisor.SHARED_MEMORY).total // 32))


def _has_nvidia_gpu() -> bool:
    return any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/dxg").exists()  # the latter is WSL2
