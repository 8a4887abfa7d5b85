"""Check this machine and a server, and name the command that fixes each problem."""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from .._common import strict_json
from .._common.extras import find_package, install
from ..download.catalogue import catalogue
from ..errors import ConfigurationError, LocalServerError, MissingDependencyError, SamError
from ..local_server.backends.onnxruntime.openvino_session import computes_in_bf16
from ..local_server.installation import find_libpython, find_wheel
from ..local_server.ports import choose_ports, option_of
from ..local_server.serve import USUAL_PORTS
from ..local_server.settings import has_gpu
from ..repository.folder import list_models, unguarded_graphs, writable_repository
from ..repository.selection import read_repository, setup_arguments, unloadable
from ..sessions.configs import complete_repository, graphs_without_config, lacking_programs
from ..transport import probe
from ..transport.failures import NOT_AVAILABLE, REFUSES_ACCESS, START_ADVICE
from ..transport.triton import Transport
from ..transport.url import ServerUrl, parse_url, usual_metrics_url
from . import _options

Status = Literal["ok", "missing", "note"]
MEMORY_TO_SERVE = 3 << 29
"""Memory in bytes that a local server with the demo model used in all measurements: docs/evidence/soak.md."""
TOOL_SECONDS = 10.0
"""Time limit in seconds of the programs that describe the machine."""
SERVER_SECONDS = 10.0
"""Time limit in seconds of each request to the server."""


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    The status "missing" means that a local server lacks a requirement, or that the server at --url is not ready.
    """

    subject: str
    status: Status
    text: str
    mend: str | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _options.add_url(parser)
    _options.add_repository(parser)
    _options.add_access(parser)
    parser.add_argument(
        "--metrics-url",
        metavar="URL",
        help="URL of the server's metrics, which list its GPUs (default: port 8002 if --url has port 8000 or 8001)",
    )
    parser.add_argument(
        "--fix", action="store_true", help="add the files and guards that earlier exports lack: config.pbtxt, programs"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit code.

    The code is 1 if the server at --url is not ready or, without --url, if no server runs and none can start here.
    It is also 1 if the given --model-repository has no models. With --fix, only the repository decides.
    """
    check_metrics_url(args.metrics_url)
    fixed = list(_fix(args)) if args.fix else []
    machine, repository, server = list(_machine()), list(_repository(args)), list(_server(args))
    by_subject = {finding.subject: finding.status for finding in (*machine, *repository, *server)}
    if args.fix or by_subject["server"] == "ok":
        machine = [_not_needed(finding) if finding.status == "missing" else finding for finding in machine]
    findings = [*machine, *fixed, *repository, *server]
    if args.json:
        print(strict_json.dumps([asdict(finding) for finding in findings]))
    else:
        for finding in findings:
            mark = {"ok": "ok     ", "missing": "MISSING", "note": "note   "}[finding.status]
            print(f"{mark} {finding.subject:20} {finding.text}")
            if finding.mend:
                print(f"{'':28} -> {finding.mend}")
    if (args.fix or args.model_repository is not None) and by_subject["models"] != "ok":
        return 1
    can_serve = all(by_subject[name] == "ok" for name in ("local Triton", "onnxruntime", "models"))
    return 0 if args.fix or by_subject["server"] == "ok" or (can_serve and args.url is None) else 1


def _not_needed(finding: Finding) -> Finding:
    """Return a note about a requirement of local servers, without advice: this may be a container that starts none."""
    return Finding(finding.subject, "note", f"{finding.text}; needed only to start a server here")


def _machine() -> Iterator[Finding]:
    """Check the requirements for serving and exporting on this machine."""
    python = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    yield Finding("Python", "ok", python)
    yield _local_triton()
    yield _onnxruntime()
    yield _processor()
    exporting = ("torch", "torchvision", "segment_anything", "sam2", "transformers", "onnx", "onnxscript")
    purpose = "needed for SAM3's words and videos, other image sizes, and to verify"
    yield _packages("export", exporting, ("torch", "sam2", "onnx"), purpose, "SAM2_BUILD_CUDA=0 ")
    serving = ("fastapi", "uvicorn")
    yield _packages("service", serving, serving, "needed only for the web page and the REST API")
    yield _memory()
    yield _tool(
        "GPU", ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"], "serving runs on the CPU"
    )
    yield _tool("Docker", ["docker", "info", "--format", "{{.ServerVersion}}"], "`triton-sam serve` does not need it")


def _local_triton() -> Finding:
    wheel = " ".join(filter(None, ("nvidia-pytriton", _version("nvidia-pytriton"))))
    try:
        find_wheel()
        find_libpython()
    except MissingDependencyError:
        return Finding("local Triton", "missing", "no nvidia-pytriton wheel", install("local"))
    except SamError as error:
        return Finding("local Triton", "missing", f"{wheel} cannot run here", str(error))
    return Finding("local Triton", "ok", wheel)


def _onnxruntime() -> Finding:
    try:
        import onnxruntime
    except ImportError:
        return Finding("onnxruntime", "missing", "not installed", install("local"))
    providers = ", ".join(name.removesuffix("ExecutionProvider") for name in onnxruntime.get_available_providers())
    return Finding("onnxruntime", "ok", f"{onnxruntime.__version__} with {providers}")


def _processor() -> Finding:
    version = _version("openvino")
    if not computes_in_bf16():
        return Finding("OpenVINO", "note", "this processor has no instructions for bf16, so OpenVINO gains little")
    if version is None:
        text = "not installed; it encodes faster on this processor, which has instructions for bf16"
        return Finding("OpenVINO", "note", text, install("openvino"))
    return Finding("OpenVINO", "ok", f"{version}, and this processor has instructions for bf16")


def _packages(extra: str, names: Sequence[str], shown: Sequence[str], purpose: str, before: str = "") -> Finding:
    """Report whether the packages of an extra are installed, and the versions of some of them."""
    absent = [name for name in names if find_package(name) is None]
    if absent:
        return Finding(extra, "note", f"{', '.join(absent)} not installed; {purpose}", before + install(extra))
    return Finding(extra, "ok", ", ".join(f"{name} {_version(name)}" for name in shown))


def _memory() -> Finding:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):  # not Linux, or a very old one
        return Finding("memory", "note", "unknown on this system")
    if free < MEMORY_TO_SERVE:
        text = f"{_gigabytes(free)} free; the demo model's server needs {_gigabytes(MEMORY_TO_SERVE)}"
        return Finding("memory", "note", text, "end other programs, or use another machine")
    return Finding("memory", "ok", f"{_gigabytes(free)} free")


def _disk(folder: Path) -> Finding:
    """Report whether the disk of the models has space for the largest checkpoint and its export."""
    largest = max(checkpoint.bytes or 0 for checkpoint in catalogue())
    free = shutil.disk_usage(folder).free
    if free < 2 * largest:
        text = (
            f"{_gigabytes(free)} free in {folder}; the largest checkpoint and its export need {_gigabytes(2 * largest)}"
        )
        return Finding("disk", "note", text, "give a folder on a larger disk with --model-repository")
    return Finding("disk", "ok", f"{_gigabytes(free)} free in {folder}")


def _tool(subject: str, command: list[str], without: str) -> Finding:
    if shutil.which(command[0]) is None:
        return Finding(subject, "note", f"no {command[0]}: {without}")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return Finding(subject, "note", f"{command[0]} does not answer within {TOOL_SECONDS:g} s: {without}")
    except OSError as error:
        return Finding(subject, "note", f"{command[0]} cannot be run ({error.strerror or error}): {without}")
    if done.returncode:
        reason = (done.stderr or done.stdout).strip().splitlines()[:1]
        return Finding(subject, "note", f"{command[0]}: {reason[0] if reason else 'failed'}: {without}")
    return Finding(subject, "ok", done.stdout.strip().replace("\n", "; "))


def _fix(args: argparse.Namespace) -> Iterator[Finding]:
    """Write missing files of the repository, and report them."""
    from ..export.repair import add_missing_guards

    folder = args.model_repository or writable_repository(create=False)
    if folder.is_dir():
        for path in complete_repository(folder):
            yield Finding("fixed", "ok", f"{path.relative_to(folder)} is written")
        for path in add_missing_guards(folder):
            yield Finding("fixed", "ok", f"{path.relative_to(folder)} has the guard; restart a running server")


def _repository(args: argparse.Namespace) -> Iterator[Finding]:
    folder = _options.repository(args)
    try:
        models = list_models(folder)
        loadable = read_repository(folder)
    except SamError as error:
        yield Finding("models", "missing", str(error))
        return
    target = folder if args.model_repository is not None else writable_repository(create=False)
    yield _disk(next(path for path in (target, *target.absolute().parents) if path.is_dir()))
    if target != folder:
        yield Finding("exports", "ok", f"go to {target}, which the first export creates")
    left_out = unloadable(loadable)
    usable = sorted(loadable.keys() - left_out - {model.name for model in models if model.problem})
    repair = "triton-sam doctor --fix" + (f" --model-repository {folder}" if args.model_repository else "")
    without_config = graphs_without_config(folder)
    for model in models:
        if model.problem:
            mend = repair if model.name in without_config else None
            yield Finding(f"model {model.name}", "note", model.problem, mend)
    incomplete = {path.relative_to(folder).parts[0] for path in lacking_programs(folder)}
    for name in sorted(incomplete):
        text = "its config.pbtxt or program is missing, though the models that it calls are here"
        yield Finding(f"model {name}", "note", text, repair)
    for name, reason in left_out.items():
        is_partly_here = not loadable[name].dependencies(loadable).isdisjoint(usable)
        if is_partly_here and name not in incomplete:
            arguments = setup_arguments(name)
            mend = None if arguments is None else f"triton-sam setup {arguments}"
            yield Finding(f"model {name}", "note", f"left out: {reason}", mend)
    for path in unguarded_graphs(folder):
        text = f"{path.relative_to(folder)} has no guard: a request for 0 images can end the server"
        yield Finding(f"model {path.parent.parent.name}", "note", text, repair)
    if usable:
        yield Finding("models", "ok", f"{', '.join(usable)} in {folder}")
    else:
        yield Finding("models", "missing", f"no weights in {folder}", "triton-sam setup sam2")


def _server(args: argparse.Namespace) -> Iterator[Finding]:
    url = parse_url(args.url)
    absent: Status = "note" if args.url is None else "missing"
    transport = Transport(url, timeout=SERVER_SECONDS, retries=0, **_options.access(args))
    try:
        transport.check_ready()
        ready = transport.ready_models()
        names = ", ".join(sorted(ready)) or "none ready"
        yield Finding("server", "ok", f"Triton {transport.server_version()} at {url}: {names}")
        gpus = server_gpus(args.metrics_url or usual_metrics_url(url))
        if args.metrics_url is not None and gpus is None:
            yield Finding("metrics", "note", f"no answer at {args.metrics_url}")
        yield from _devices(transport, sorted(ready), gpus or is_this_machine_with_gpu(url))
    except SamError as error:
        hint = "" if args.url is None else probe.hint(url, error)
        text = str(error).removesuffix(START_ADVICE)
        yield Finding("server", absent, text + hint, None if hint else _mend_server(url, error))
        if args.url is None:
            yield from _ports()
    finally:
        transport.close()


def _mend_server(url: ServerUrl, error: SamError) -> str | None:
    """Return the command that makes a server available; None if the text of the error says what to do."""
    if str(error).endswith(START_ADVICE):
        start = "on its host: docker compose up -d, or triton-sam serve --host 0.0.0.0"
        return "triton-sam serve" if _is_here(url) else start
    if REFUSES_ACCESS in str(error):
        return f"TRITON_TOKEN=TOKEN triton-sam doctor --url {url}"
    if NOT_AVAILABLE in str(error):
        return "on its host: docker compose ps, docker compose logs triton"
    return None


def _devices(transport: Transport, names: list[str], gpus: bool) -> Iterator[Finding]:
    """Report where every model runs, and warn about models on the CPU of a server with a GPU."""
    placements: dict[str, Placement] = {}
    for name in names:
        try:
            placements[name] = placement(transport.model_config(name))
        except SamError as error:
            yield Finding(f"model {name}", "note", str(error))
    gpus = gpus or any(place.on_gpu for place in placements.values())
    for name, place in placements.items():
        if gpus and place.on_cpu and place.computes:
            yield Finding(
                f"model {name}",
                "note",
                f"{place.text}, though there is a GPU: the container has no access to it, or a driver error hides it",
                "see the server's log; after `triton-sam config` with `--gpus 0`, such a model fails to load instead",
            )
        else:
            yield Finding(f"model {name}", "ok", place.text)


def _ports() -> Iterator[Finding]:
    for service, purpose in {"http": "HTTP", "grpc": "gRPC", "metrics": "metrics"}.items():
        port = USUAL_PORTS[f"{service}_port"]
        try:
            choose_ports("127.0.0.1", {service: port})
        except LocalServerError:
            text, mend = f"taken by another process ({purpose})", f"triton-sam serve {option_of(service)} 0"
            yield Finding(f"port {port}", "note", text, mend)


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB"


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


_COMPUTING = frozenset({"onnxruntime", "onnxruntime_onnx", "tensorrt", "tensorrt_plan", "pytorch", "pytorch_libtorch"})
"""Backends that run faster on a GPU. Models of the Python backend only forward requests."""


@dataclass(frozen=True)
class Placement:
    """Where the instances of one model run."""

    text: str
    on_gpu: bool
    on_cpu: bool
    computes: bool


def placement(config: Mapping[str, Any]) -> Placement:
    """Return where the instances of a model run, by the configuration that the server completed."""
    computes = (config.get("backend") or config.get("platform")) in _COMPUTING
    groups = config.get("instance_group", [])
    kinds = [str(group.get("kind", "KIND_AUTO")).removeprefix("KIND_") for group in groups]
    parts = []
    if config.get("platform") == "ensemble":  # only the models that an ensemble calls have instances
        called = [str(step.get("model_name")) for step in config.get("ensemble_scheduling", {}).get("step", [])]
        parts.append("ensemble of " + ", ".join(dict.fromkeys(called)) if called else "ensemble")
    for group, kind in zip(groups, kinds, strict=True):
        gpus = ",".join(map(str, group.get("gpus", [])))
        count = group.get("count", 1)
        parts.append(f"{count} {'instance' if count == 1 else 'instances'} on {kind}{' ' + gpus if gpus else ''}")
    accelerators = config.get("optimization", {}).get("execution_accelerators", {}).get("gpu_execution_accelerator", [])
    if accelerators:
        parts.append("with " + ", ".join(str(accelerator.get("name")) for accelerator in accelerators))
    return Placement("; ".join(parts) or "unknown device", "GPU" in kinds, "CPU" in kinds, computes)


def check_metrics_url(metrics_url: str | None) -> None:
    try:
        fits = metrics_url is None or urlsplit(metrics_url).scheme in ("http", "https")
    except ValueError:  # for example http://[
        fits = False
    if not fits:
        raise ConfigurationError(f"{metrics_url!r} is not the URL of metrics: write http://host:8002/metrics")


def server_gpus(metrics_url: str | None) -> bool | None:
    """Return whether the metrics of a server list a GPU; None if metrics are unavailable."""
    metrics = None if metrics_url is None else probe.read_metrics(metrics_url)
    return None if metrics is None else bool(re.search(r"(?m)^nv_gpu_", metrics))


def is_this_machine_with_gpu(url: ServerUrl) -> bool:
    """Return whether a server runs on this machine and this machine has an NVIDIA GPU."""
    return _is_here(url) and has_gpu()


def _is_here(url: ServerUrl) -> bool:
    return urlsplit(str(url)).hostname in ("localhost", "127.0.0.1", "::1")
