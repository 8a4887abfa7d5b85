"""Run a real Triton as a child process of this program, without Docker."""

from __future__ import annotations

import atexit
import math
import os
import secrets
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from triton_sam.errors import ConfigurationError, LocalServerError, PortInUseError
from triton_sam.local_server.closed import (
    LINKS,
    closed_options,
    make_run_directory,
    open_options,
    shared_memory_options,
    shm_prefix,
)
from triton_sam.local_server.installation import Triton, prepare_triton
from triton_sam.local_server.ports import choose_ports, option_of, port_in_use, reachable_host, resolve_host
from triton_sam.local_server.probe import (
    POLL_TIMEOUT,
    TIMEOUT,
    Probe,
    ServedModel,
    explain,
    failed_models,
    taken_port,
)
from triton_sam.local_server.process import POLL_SECONDS, SupervisedTriton
from triton_sam.local_server.settings import ServerSettings, completion_options, has_gpu, server_options
from triton_sam.local_server.supervisor import Job
from triton_sam.repository.config import DECODER_IN_SESSION_VARIABLE, IF_POSSIBLE
from triton_sam.repository.folder import RepositoryModel
from triton_sam.repository.hashes import intact_models
from triton_sam.repository.selection import select_models

PORT_ATTEMPTS = 3


class LocalServer:
    """A local Triton server, which ends when this program ends, if not earlier.

    Examples:
        ```python
        with LocalServer("model_repository") as server:
            client = SAM2TritonClient(server.http_url)
        ```

    Args:
        settings: fields of `ServerSettings`, for example `http_port=8000`.
    """

    def __init__(self, model_repository: str | Path, **settings: Any) -> None:
        self.model_repository = Path(model_repository).expanduser().absolute()
        self._settings = ServerSettings(**settings)
        self.host = self._settings.host
        self._wanted_ports = {name: settings.get(f"{name}_port", 0) for name in ("http", "grpc", "metrics")}
        self._ports: dict[str, int] = {}
        self._run: SupervisedTriton | None = None

    def __enter__(self) -> LocalServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = f"pid {self.pid}, {self.http_url}" if self.is_alive() else "not running"
        return f"<LocalServer {self.model_repository} ({state})>"

    def start(self) -> LocalServer:
        """Start the server and return when every model is ready.

        Returns:
            This object.
        """
        if self.is_alive():
            raise LocalServerError("this server runs already: stop it before you start it again")
        self.stop()  # removes the files of a server that has ended
        folders = intact_models(
            select_models(self.model_repository, self._settings.models), verify=self._settings.verify
        )
        for attempts_left in reversed(range(PORT_ATTEMPTS)):
            try:
                self._start_once(folders)
            except PortInUseError as error:
                # Another process can take a free port before Triton listens on it.
                if attempts_left == 0 or not self._concerns_free_port(error):
                    raise
            else:
                break
        atexit.register(self.stop)
        return self

    def stop(self) -> None:
        """Stop the server, if it runs. Running requests have `stop_timeout` seconds to finish."""
        if self._run is not None:
            self._run.stop()
            atexit.unregister(self.stop)

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait until the server ends.

        Returns:
            The exit status of tritonserver; None if it still runs after `timeout` seconds.
        """
        if self._run is None:
            raise LocalServerError("the server was not started: call start() first")
        return self._run.wait(timeout)

    def is_alive(self) -> bool:
        """Return whether the server process runs."""
        return self._run is not None and self._run.exit_status is None

    @property
    def pid(self) -> int | None:
        """Process id of tritonserver; None before the first start. It changes when Triton is restarted."""
        return self._run.pid if self._run else None

    @property
    def restarts(self) -> int:
        """Number of restarts since start(), because Triton or the process of one of its models died."""
        return self._run.restarts if self._run else 0

    @property
    def http_url(self) -> str:
        """URL for HTTP clients, for example http://127.0.0.1:8000."""
        return f"http://{self._reachable_host()}:{self._port('http')}"

    @property
    def grpc_url(self) -> str:
        """URL for gRPC clients, for example grpc://127.0.0.1:8001."""
        return f"grpc://{self._reachable_host()}:{self._port('grpc')}"

    @property
    def metrics_url(self) -> str:
        """URL for Prometheus, for example http://127.0.0.1:8002/metrics."""
        return f"http://{self._reachable_host()}:{self._port('metrics')}/metrics"

    @property
    def log(self) -> str:
        """The last 64 KiB of the server's log, also after the server has stopped."""
        return self._run.log if self._run else ""

    @property
    def log_path(self) -> Path | None:
        """The server's log file; None before the first start."""
        return self._run.log_path if self._run else None

    @property
    def log_place(self) -> tuple[Path, int] | None:
        """`log_path` and the byte offset of the beginning of this server's log; None before the first start.

        The bytes before the offset are from earlier servers with the same `log_file`.
        """
        run = self._run
        return (run.log_path, run.log_start) if run else None

    def served_models(self) -> list[ServedModel]:
        """Return the models that are ready, and the device of each."""
        return self._probe().served_models()

    def server_version(self) -> str:
        """Return Triton's version, for example 2.51.0; an empty string if the server does not answer."""
        return str(self._probe().about().get("version", ""))

    def _start_once(self, folders: Sequence[RepositoryModel]) -> None:
        address = resolve_host(self.host)
        self._ports = choose_ports(address, self._wanted_ports)
        identity = secrets.token_hex(4)
        run_directory = make_run_directory(runs_programs=self._settings.tritonserver is None)
        try:
            wanted = self._settings
            triton = prepare_triton(run_directory, _path(wanted.tritonserver), _path(wanted.backend_directory))
            log_path = (_path(wanted.log_file) or run_directory / "tritonserver.log").absolute()
            job = Job(
                command=self._command(triton, address, identity, folders, run_directory),
                log_file=str(log_path),
                run_directory=str(run_directory),
                shm_prefix=shm_prefix(identity),
                grace_seconds=wanted.stop_timeout,
                parent_pid=os.getpid(),
                address=[reachable_host(address), self._ports["http"]],
                heal=wanted.heal,
                facts={
                    "repository": str(self.model_repository),
                    "links": "" if wanted.admin else str(run_directory / LINKS),
                    "ports": {"http": self._ports["http"], "grpc": self._ports["grpc"]},
                    "verify": wanted.verify,
                },
            )
            environment = {**triton.environment, DECODER_IN_SESSION_VARIABLE: _who_decodes(wanted)}
            self._run = SupervisedTriton(job, environment)
            self._run.learn_pid()
            self._wait_until_ready(self._run, identity, [folder.name for folder in folders])
        except BaseException:  # also after Ctrl-C during the start
            self.stop()
            shutil.rmtree(run_directory, ignore_errors=True)
            raise

    def _command(
        self, triton: Triton, address: str, identity: str, folders: Sequence[RepositoryModel], run_directory: Path
    ) -> list[str]:
        extra = self._settings.extra_args
        if self._settings.admin:
            control = open_options(self.model_repository, folders, (), run_directory)
        else:
            control = [*closed_options(folders, extra, run_directory), *completion_options(folders, extra)]
        command = [
            str(triton.executable),
            f"--id={_name(identity)}",
            f"--backend-directory={triton.backend_directory}",
            f"--cache-directory={triton.cache_directory}",
            *control,
            # The server must stay alive after a model fails, because its repository index contains the reason.
            "--exit-on-error=false",
            f"--exit-timeout-secs={max(1, math.ceil(self._settings.stop_timeout))}",
            *shared_memory_options(identity),
            *server_options(folders, extra),
            f"--log-verbose={self._settings.log_verbose}",
        ]
        for service, port in self._ports.items():
            command += [f"--{service}-address={address}", f"--{service}-port={port}"]
        if not has_gpu():
            command.append("--allow-gpu-metrics=false")  # otherwise NVML and DCGM errors fill the log
        return [*command, *extra]

    def _wait_until_ready(self, run: SupervisedTriton, identity: str, wanted: Sequence[str]) -> None:
        probe = self._probe(POLL_TIMEOUT)
        deadline = time.monotonic() + self._settings.startup_timeout
        while time.monotonic() < deadline:
            if run.exit_status is not None:
                raise self._early_end(run)
            # Triton answers after all models are loaded or have failed. Its name distinguishes it from another server
            # that took the port in the meantime.
            index = probe.index() if probe.about().get("name") == _name(identity) else None
            if index is not None:
                failures = failed_models(index, wanted)
                if failures:
                    reasons = explain(failures, run.log, self.model_repository).items()
                    raise LocalServerError("; ".join(f"model {name!r} failed to load: {why}" for name, why in reasons))
                return
            time.sleep(POLL_SECONDS)
        excerpt = run.log_excerpt()
        raise LocalServerError(f"the server was not ready after {self._settings.startup_timeout:g} s{excerpt}")

    def _early_end(self, run: SupervisedTriton) -> LocalServerError:
        service = taken_port(run.log, self._ports)
        if service is not None:
            return port_in_use(option_of(service), self._ports[service])
        status = f"exit status {run.exit_status}"
        return LocalServerError(f"the server ended while it started ({status}){run.log_excerpt()}")

    def _concerns_free_port(self, error: PortInUseError) -> bool:
        """Return whether the error concerns a port that was chosen here, not by the caller."""
        return error.port not in self._wanted_ports.values()

    def _probe(self, timeout: float = TIMEOUT) -> Probe:
        return Probe(self._reachable_host(), self._port("http"), timeout)

    def _reachable_host(self) -> str:
        return reachable_host(resolve_host(self.host))

    def _port(self, service: str) -> int:
        port = self._ports.get(service) or self._wanted_ports[service]
        if not port:
            raise LocalServerError("the server was not started, so its port is not known yet: call start() first")
        return port


def _who_decodes(wanted: ServerSettings) -> str:
    """Return the environment variable with which session models learn whether they run their decoders themselves."""
    if wanted.decoder_in_session is not None:
        return "1" if wanted.decoder_in_session else "0"
    chosen = os.environ.get(DECODER_IN_SESSION_VARIABLE, "")
    if chosen not in ("", "0", "1"):
        raise ConfigurationError(f"{DECODER_IN_SESSION_VARIABLE} must be 1 or 0, not {chosen!r}")
    # Another installation's ONNX Runtime may compute other bits than the one of this Python.
    return chosen or ("" if wanted.tritonserver or wanted.backend_directory else IF_POSSIBLE)


def _path(given: str | Path | None) -> Path | None:
    return Path(given).expanduser() if given else None


def _name(identity: str) -> str:
    return f"triton-sam-{identity}"
