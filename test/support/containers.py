"""Run the containers of the compose file with Podman, on a machine that cannot pull images.

The base images are stand-ins from Debian's packages and PyPI (see `standins/Containerfile`). The Dockerfile, the
compose file and the scripts are the real ones. Podman needs root here, because debootstrap does.
"""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import shutil
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from triton_sam import SAM2TritonClient
from triton_sam._common.bundle import bundled, checkout
from triton_sam.local_server import installation

ROOT = checkout() or Path.cwd()  # the containers are tested only in a checkout
STAND_INS = Path(__file__).parent / "standins"
PROGRAMS = ("podman", "buildah", "runc", "debootstrap")
PACKAGES = "ca-certificates,libgomp1,libpython3.11,nginx-light,prometheus,python3,python3-pip,python3-venv"
SUITE = "bookworm"
MIRROR = "http://deb.debian.org/debian"
BASE = "localhost/triton-sam-debian"
_PROCESSES = 30_000
_LOCKED_BYTES = 8 << 20


def missing() -> str:
    """Return what this machine lacks to run containers; "" if nothing is missing."""
    lacking = [name for name in PROGRAMS if shutil.which(name) is None]
    if importlib.util.find_spec("podman_compose") is None:
        lacking.append("podman-compose (PyPI)")
    if lacking:
        return f"containers need {', '.join(lacking)}"
    return "" if os.geteuid() == 0 else "containers need root, since debootstrap does"


class MachineError(Exception):
    """This machine cannot run containers."""


class Podman:
    """A Podman whose images, containers and networks are in a separate folder.

    Args:
        folder: the folder, which `close()` removes.
        project: the name of the compose project.
    """

    def __init__(self, folder: Path, project: str) -> None:
        self.folder = folder
        self.project = project
        self.directory = folder / "checkout"
        self.compose_file = self.directory / "compose.test.yml"
        self.environment = {**os.environ, **self._settings(), "BUILDAH_ISOLATION": "chroot"}
        self.environment.pop("NOTIFY_SOCKET", None)

    def _settings(self) -> dict[str, str]:
        """Write the configuration and return the variables with its files.

        The limits are the maximum of this process: a machine may allow fewer open files than Podman's default.
        """
        files = min(20_000, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        texts = {
            "CONTAINERS_STORAGE_CONF": "[storage]\n"
            f'driver = "{_storage_driver()}"\ngraphroot = "{self.folder}/store"\nrunroot = "{self.folder}/run"\n',
            "CONTAINERS_CONF": "[containers]\n"
            f'default_ulimits = ["nofile={files}:{files}", "nproc={_PROCESSES}:{_PROCESSES}"]\n'
            'log_driver = "k8s-file"\n'
            '[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
            # Without netavark, containers do not find each other by name.
            '[network]\nnetwork_backend = "netavark"\n',
            "CONTAINERS_REGISTRIES_CONF": 'short-name-mode = "permissive"\n'
            'unqualified-search-registries = ["docker.io"]\n',
        }
        settings = {}
        for variable, text in texts.items():
            path = self.folder / f"{variable.lower()}.conf"
            path.write_text(text, encoding="utf-8")
            settings[variable] = str(path)
        return settings

    def run(self, *arguments: str, check: bool = True, timeout: float = 900.0) -> str:
        """Run `podman ARGUMENTS` and return its standard output without the line break at its end."""
        return self._call(["podman", *arguments], check, timeout)

    def compose(self, *arguments: str, check: bool = True, timeout: float = 900.0) -> str:
        """Run `podman-compose ARGUMENTS` on the compose file of the copied checkout."""
        command = [sys.executable, "-m", "podman_compose", "--project-name", self.project, "--file"]
        return self._call([*command, str(self.compose_file), *arguments], check, timeout)

    def _call(self, command: Sequence[str], check: bool, timeout: float) -> str:
        done = subprocess.run(
            command,
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if check and done.returncode:
            raise AssertionError(
                f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
            )
        return done.stdout.strip()

    def container(self, service: str) -> str:
        """Return the name of a service's container."""
        return f"{self.project}_{service}_1"

    def inspect(self, service: str) -> dict[str, Any]:
        """Return Podman's data about a service's container."""
        document: list[dict[str, Any]] = json.loads(self.run("inspect", self.container(service)))
        return document[0]

    def execute(self, service: str, *command: str) -> str:
        """Run a command in a service's container and return its standard output."""
        return self.run("exec", self.container(service), *command)

    def address(self, service: str) -> str:
        """Return the address of a service's container inside the network of the project."""
        networks: dict[str, dict[str, Any]] = self.inspect(service)["NetworkSettings"]["Networks"]
        return str(next(iter(networks.values()))["IPAddress"])

    def is_healthy(self, service: str) -> bool:
        """Run the health check of a service's container once. (Podman's timer needs systemd.)"""
        command = ["podman", "healthcheck", "run", self.container(service)]
        return subprocess.run(command, env=self.environment, capture_output=True, check=False).returncode == 0

    def last_words(self) -> str:
        """Return the last lines of the log of every container, for a failed test."""
        parts = []
        for name in self.run("ps", "--all", "--format", "{{.Names}}").splitlines():
            command = ["podman", "logs", "--tail", "15", name]
            done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
            parts.append(f"--- {name}\n{done.stdout}{done.stderr}")
        return "\n".join(parts)

    def build_stand_ins(self, images: dict[str, str]) -> None:
        """Build the stand-ins.

        Args:
            images: the target in the Containerfile for each image name that the project uses.

        Raises:
            MachineError: this machine cannot build them, for example without a network.
        """
        try:
            self._build_stand_ins(images)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            raise MachineError(f"no stand-ins for the base images: {str(error)[-1000:]}") from error

    def _build_stand_ins(self, images: dict[str, str]) -> None:
        context = self.folder / "context"
        _write_host_files(context / "host")
        installation.copy_own_backends(context / "backends")
        shutil.copy2(STAND_INS / "nginx-entrypoint.sh", context)
        self._import_debian()
        for image, target in images.items():
            file = str(STAND_INS / "Containerfile")
            self.run(
                "build", "--quiet", "--format=docker", "--target", target, "--tag", image, "--file", file, str(context)
            )

    def _import_debian(self) -> None:
        root = self.folder / "root"
        options = ["--variant=minbase", f"--include={PACKAGES}"]
        self._call(["debootstrap", *options, SUITE, str(root), MIRROR], True, 900.0)
        archive = self.folder / "root.tar"
        self._call(["tar", "--create", f"--directory={root}", f"--file={archive}", "."], True, 300.0)
        self.run("import", "--quiet", str(archive), BASE)
        archive.unlink()
        shutil.rmtree(root)

    def close(self) -> None:
        """Stop the containers and remove everything."""
        if self.compose_file.exists():
            self.compose("down", "--volumes", "--timeout", "5", check=False)
        self.run("rm", "--all", "--force", "--volumes", "--time", "5", check=False)
        self.run("rmi", "--all", "--force", check=False)
        self.run("network", "prune", "--force", check=False)
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def podman(folder: Path, project: str) -> Iterator[Podman]:
    """Yield a Podman with a copy of this checkout's tracked files, and remove it afterwards."""
    engine = Podman(folder, project)
    engine.directory.mkdir()
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        source, target = ROOT / name, engine.directory / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    try:
        yield engine
    finally:
        engine.close()


def fit_to_machine(compose: dict[str, Any]) -> dict[str, Any]:
    """Return a compose file without GPUs, and with the limits that this machine allows."""
    for service in compose["services"].values():
        service.get("deploy", {}).pop("resources", None)
        if "ulimits" in service:
            files = min(20_000, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
            limits = {"nofile": {"soft": files, "hard": files}, "nproc": _PROCESSES, "memlock": _LOCKED_BYTES}
            service["ulimits"] = limits
    return compose


def give_to_containers(folder: Path) -> None:
    """Make uid 1000, the user of the containers, the owner."""
    for path in (folder, *folder.rglob("*")):
        os.chown(path, 1000, 1000)


def _storage_driver() -> str:
    """Return `overlay` if the kernel supports it, else `vfs`, which works everywhere but copies every layer."""
    filesystems = Path("/proc/filesystems").read_text(encoding="ascii")
    return "overlay" if "\toverlay\n" in filesystems else "vfs"


def _write_host_files(host: Path) -> None:
    """Copy this machine's certificate authorities and pip settings, which a build may need to download packages."""
    authorities = Path(os.environ.get("SSL_CERT_FILE") or ssl.get_default_verify_paths().cafile or "")
    certificates = host / "etc/ssl/certs/ca-certificates.crt"
    certificates.parent.mkdir(parents=True)
    if authorities.is_file():
        shutil.copyfile(authorities, certificates)
    settings = Path("/etc/pip.conf")
    (host / "etc/pip.conf").write_text(
        settings.read_text(encoding="utf-8") if settings.is_file() else "", encoding="utf-8"
    )
    shutil.copyfile(ROOT / "constraints.txt", host / "constraints.txt")


# --- calls to the containers -----------------------------------------------------------------------------------------


IMAGE = bundled("test/images") / "shapes.jpg"
POINTS = np.array([[200.0, 180.0]])
TOKEN = "a-token-of-the-service"


def click(url: str, fresh: bool = False, **options: Any) -> np.ndarray:
    """Return the mask of one click, from a new client."""
    image = IMAGE.read_bytes() + (uuid.uuid4().bytes if fresh else b"")  # other bytes are another image for the cache
    with SAM2TritonClient(url, timeout=30, **options) as client:
        client.set_image(image)
        mask: np.ndarray = client.segment(POINTS, np.ones(1))[0].mask
        return mask


def segment(deployment: SimpleNamespace) -> dict[str, Any]:
    """Return the service's answer to one click."""
    boundary = uuid.uuid4().hex
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="image"; filename="shapes.jpg"\r\n\r\n'
    body = head.encode() + IMAGE.read_bytes() + f"\r\n--{boundary}--\r\n".encode()
    kind = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
    image = json.loads(ask(f"{deployment.service}/v1/images", body, token=TOKEN, **kind))["id"]
    prompt = json.dumps({"points": POINTS.tolist(), "labels": [1]}).encode()
    kind = {"Content-Type": "application/json"}
    answer: dict[str, Any] = json.loads(
        ask(f"{deployment.service}/v1/images/{image}/segment", prompt, token=TOKEN, **kind)
    )
    return answer


def version(deployment: SimpleNamespace) -> str:
    """Return the ready version of the encoder."""
    return str(max(json.loads(ask(f"{deployment.http}/v2/models/sam2_encoder"))["versions"], key=int))


def ask(url: str, body: bytes | None = None, token: str = "", **headers: str) -> bytes:
    """Return the body of an HTTP answer."""
    if token:
        headers["Authorization"] = f"Bearer {token}"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=30) as answer:
            content: bytes = answer.read()
            return content
    except urllib.error.HTTPError as error:
        error.close()  # an open socket would cause a warning at garbage collection
        raise
