"""The files of a deployment pass their checkers, run without rights that they do not need, and start."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from support import helm

from tools.maintain import lint_deploy as lint
from triton_sam import __version__
from triton_sam._common.bundle import bundled, checkout
from triton_sam.annotate.folder import Part
from triton_sam.cli import build_parser
from triton_sam.download import catalogue as checkpoints

ROOT = checkout()
SERVICES = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]


@pytest.mark.parametrize("check", [check.__name__ for check in lint.CHECKS])
def test_every_file_passes_its_checker(check):
    try:
        assert list(getattr(lint, check)()) == []
    except lint.SkippedError as reason:
        pytest.skip(str(reason))


def test_every_promised_profile_is_there():
    profiles = {profile for service in SERVICES.values() for profile in service.get("profiles", [])}
    assert profiles == {"cpu", "second", "monitoring", "service", "tls", "export"}
    assert "profiles" not in SERVICES["triton"]  # `docker compose up` on a GPU host
    assert SERVICES["triton"]["deploy"]["resources"]["reservations"]["devices"][0]["capabilities"] == ["gpu"]
    assert "deploy" not in SERVICES["triton-cpu"]
    assert "TRITON_SAM_TOKEN" in SERVICES["service"]["environment"]
    assert {"TRITON_SAM_MIRROR", "HF_ENDPOINT", "HF_TOKEN"} <= set(SERVICES["export"]["environment"])


@pytest.mark.parametrize(
    ("options", "hosts", "words"),
    [
        ("", "localhost", ["--allowed-host", "service", "localhost"]),
        (
            "--adapter osam cvat --limits '{\"memory\": 512}'",
            "localhost sam.example.org",
            [
                *("--adapter", "osam", "cvat", "--limits", '{"memory": 512}'),
                *("--allowed-host", "service", "localhost", "sam.example.org"),
            ],
        ),
    ],
)
def test_the_service_receives_every_option_as_a_word(options, hosts, words, tmp_path):
    """Docker fills in variables before it splits a command given as a text, podman-compose afterwards."""
    program = tmp_path / "triton-sam"
    program.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    program.chmod(0o755)
    service = SERVICES["service"]
    assert isinstance(service["command"], list)
    (command,) = service["command"]
    for name, value in (("SERVICE_OPTIONS:-", options), ("ALLOWED_HOSTS:-localhost", hosts)):
        command = command.replace("${" + name + "}", value)
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run([*service["entrypoint"], command], env=path, capture_output=True, text=True, check=True)
    given = done.stdout.splitlines()
    assert given[0] == "service"
    assert given[given.index("grpc://triton:8001") + 1 :] == words


def test_the_export_image_downloads_into_its_volume():
    stage = (ROOT / "Dockerfile").read_text().partition(" AS export")[2].partition("\nFROM ")[0]
    workdir = Path(re.findall(r"(?m)^WORKDIR (.*)$", stage)[-1])
    volumes = json.loads(re.findall(r"(?m)^VOLUME (.*)$", stage)[-1])
    assert str(workdir / checkpoints.DIRECTORY) in volumes


# --- no container runs as root, writes to its root file system, or may gain privileges; test_helm.py has the chart's


def test_every_image_runs_as_a_user_other_than_root():
    stages = re.split(r"(?m)^FROM ", (ROOT / "Dockerfile").read_text(encoding="utf-8"))[1:]
    assert [stage.split()[2] for stage in stages] == ["export", "service", "cpu", "triton"]
    for stage in stages:
        assert re.findall(r"(?m)^USER (\S+)", stage)[-1] == "1000:1000"


@pytest.mark.parametrize("name", SERVICES)
def test_services_of_the_compose_file(name):
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "cap_add" not in service
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not service.get("privileged")
    assert not {"network_mode", "pid", "ipc"} & set(service)
    assert not any("docker.sock" in volume for volume in service.get("volumes", []))
    if "build" not in service and name not in ("prometheus", "grafana"):  # these two images name a user themselves
        assert not str(service["user"]).startswith(("0", "root"))


def test_every_service_has_volumes_for_the_files_that_it_writes():
    """The root file system is read-only, so exported models, TensorRT's engines and databases need volumes."""
    for name, service in SERVICES.items():
        # The local server starts programs that it puts there.
        assert service["tmpfs"] == (["/tmp:exec"] if name == "triton-cpu" else ["/tmp"])
    written = {
        "export": ["/models", "/checkpoints"],
        "service": ["/uploads"],
        "prometheus": ["/prometheus"],
        "grafana": ["/var/lib/grafana"],
    }
    for name, places in {**written, "triton": ["/var/cache/triton-sam"]}.items():
        mounts = SERVICES[name]["volumes"]
        assert all(any(mount.endswith(f":{place}") for mount in mounts) for place in places), name
    assert SERVICES["service"]["environment"]["TMPDIR"] == "/uploads"
    # Triton itself only reads models.
    assert any(mount.endswith(":/models:ro") for mount in SERVICES["triton"]["volumes"])


def test_no_port_is_open_to_the_world_by_default():
    """Only nginx is open to the world, because it requires a token. Triton's address opens neither page nor Grafana."""
    variables = {
        "nginx": "${TLS_ADDRESS:-0.0.0.0}",
        "prometheus": "127.0.0.1",
        "grafana": "${GRAFANA_ADDRESS:-127.0.0.1}",
        "service": "${SERVICE_ADDRESS:-127.0.0.1}",
    }
    for name, service in SERVICES.items():
        for port in service.get("ports", []):
            assert port.startswith(f"{variables.get(name, '${BIND_ADDRESS:-127.0.0.1}')}:"), name


def test_nginx_leads_to_the_service_only_if_it_has_a_token():
    """test_nginx.py runs nginx with both values."""
    nginx = SERVICES["nginx"]
    assert nginx["environment"]["SERVICE_SERVER"] == "${TRITON_SAM_TOKEN:+service:8080}"
    templates = {f"./{path.relative_to(ROOT)}" for path in (ROOT / "deploy" / "nginx").glob("*.template")}
    assert templates <= {mount.partition(":")[0] for mount in nginx["volumes"]}


def test_nginx_asks_the_first_name_server_alone():
    """Only this one finds containers, and Podman lists those of the host after it."""
    (mount,) = [one for one in SERVICES["nginx"]["volumes"] if ":/docker-entrypoint.d/" in one]
    source, target, _ = mount.split(":")
    # The image sources executable files in order, between its 15-local-resolvers.envsh and 20-envsubst-on-templates.sh.
    assert "/docker-entrypoint.d/15-z" < target < "/docker-entrypoint.d/20"
    assert target.endswith(".envsh")
    assert (ROOT / source).stat().st_mode & 0o111 == 0o111
    command = ["sh", "-euc", f'. "{ROOT / source}"; sh -c \'echo "$NGINX_LOCAL_RESOLVERS"\'']
    for servers, first in (("10.89.0.1 192.0.2.53", "10.89.0.1"), ("127.0.0.11", "127.0.0.11")):
        environment = {"PATH": "/usr/bin:/bin", "NGINX_LOCAL_RESOLVERS": servers}
        assert subprocess.check_output(command, env=environment, text=True) == f"{first}\n"


def test_a_proxy_of_the_containers_is_not_asked_for_other_containers():
    """Docker puts `http_proxy` of its configuration into every container, and gRPC uses it for all hosts."""
    (url,) = re.findall(r"--url grpc://([^:]+):", SERVICES["service"]["command"][0])
    assert SERVICES["service"]["environment"]["no_grpc_proxy"] == url
    source = yaml.safe_load((ROOT / "deploy/monitoring/grafana/provisioning/datasources/prometheus.yml").read_text())
    (host,) = re.findall(r"//([^:]+):", source["datasources"][0]["url"])
    assert SERVICES["grafana"]["environment"]["NO_PROXY"] == host


def test_nobody_logs_in_to_grafana():
    """Its image creates the user admin with the password admin."""
    environment = SERVICES["grafana"]["environment"]
    assert environment["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert (environment["GF_AUTH_DISABLE_LOGIN_FORM"], environment["GF_AUTH_BASIC_ENABLED"]) == ("true", "false")
    assert not [key for key in environment if "PASSWORD" in key]


# --- scripts of the images


class Volume:
    """An empty volume, and programs in place of `triton-sam`, whose setup has its own tests, and others."""

    def __init__(self, folder: Path) -> None:
        self.models, self.programs = folder / "models", folder / "bin"
        self.models.mkdir()
        self.programs.mkdir()

    def add(self, name: str, body: str = "") -> None:
        (self.programs / name).write_text(f"#!/bin/sh\n{body}\n")
        (self.programs / name).chmod(0o755)

    def set_up(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        command = ["bash", str(ROOT / "scripts" / "container_setup.sh"), *words]
        environment = {"PATH": f"{self.programs}:/usr/bin:/bin", "TRITON_SAM_REPOSITORY": str(self.models), **variables}
        return subprocess.run(command, env=environment, capture_output=True, timeout=60, text=True, check=False)


@pytest.fixture
def volume(tmp_path):
    return Volume(tmp_path)


def test_the_export_image_fills_a_volume_once(volume, tmp_path):
    models, exported, called = volume.models, volume.models / "sam2_encoder" / "2" / "model.onnx", tmp_path / "called"
    volume.add("triton-sam", f'echo "$@" >> {called}\nmkdir -p {exported.parent} && echo new > {exported}')

    def calls(**more: str) -> int:
        assert volume.set_up("sam2", "base_plus", "--precision", "fp16", **more).returncode == 0
        return called.read_text().splitlines().count("setup sam2 base_plus --precision fp16")

    assert [calls(), calls(), calls(FORCE="1"), calls()] == [1, 1, 2, 2]
    shutil.rmtree(exported.parent)  # as docs/how-to/official-weights.md goes back to the demo model
    assert [calls(), calls()] == [3, 3]
    assert exported.is_file()
    assert (models / "sam2_encoder" / "1" / "model.onnx").is_file()
    assert (models / "sam2_preprocess" / "config.pbtxt").is_file()
    (models / "sam2" / "config.pbtxt").write_text("changed by hand")
    calls()
    assert (models / "sam2" / "config.pbtxt").read_text() == "changed by hand"
    assert volume.set_up("sam2").returncode == 2


def test_a_setup_that_was_replaced_is_done_again(volume):
    """Two sizes have the same places. After base_plus and large, the volume holds large, so base_plus is not there."""
    folder = f"{volume.models}/${{2}}_encoder/2"
    volume.add("triton-sam", f'mkdir -p {folder} && echo "$3" > {folder}/model.onnx')
    # The clock of the volume's file server is behind that of the container, which dates files elsewhere: a time mark by
    # mktemp would be later than the files.
    volume.add("mktemp", 'file=$(/usr/bin/mktemp "$@")\ntouch -d "+1 hour" "$file"\necho "$file"')
    for family, size, is_new in (
        ("sam2", "base_plus", True),
        ("sam1", "vit_b", True),
        ("sam2", "large", True),
        ("sam2", "large", False),
        ("sam2", "base_plus", True),
        ("sam2", "base_plus", False),
        ("sam1", "vit_b", False),
    ):
        done = volume.set_up(family, size)
        assert (done.returncode, "already" in done.stdout) == (0, not is_new)
        assert (volume.models / f"{family}_encoder" / "2" / "model.onnx").read_text() == f"{size}\n"
    assert len((volume.models / ".triton-sam-setup").read_text().splitlines()) == 2


def test_an_interrupted_copy_of_the_seed_is_made_again(volume, tmp_path):
    """The copy of `b` fails in its middle, as when a pod is stopped. `c` has weights of the user alone."""
    seed, models = tmp_path / "seed", volume.models
    for name in "abc":
        (seed / name / "1").mkdir(parents=True)
        (seed / name / "config.pbtxt").write_text(name)
        (seed / name / "1" / "model.onnx").write_text("weights")
    (models / "c" / "2").mkdir(parents=True)
    (models / "c" / "2" / "model.onnx").write_text("of the user")
    volume.add("triton-sam")
    fails = f"mkdir {models}/.seed-b; echo b > {models}/.seed-b/config.pbtxt; exit 1"
    volume.add("cp", f'case "$*" in */b*) {fails};; esac\nexec /bin/cp "$@"')
    assert volume.set_up("sam2", "large", TRITON_SAM_SEED=str(seed)).returncode == 1
    assert not (models / "b").exists()
    (volume.programs / "cp").unlink()
    assert volume.set_up("sam2", "large", TRITON_SAM_SEED=str(seed)).returncode == 0
    for name in "abc":
        assert (models / name / "config.pbtxt").read_text() == name
        assert (models / name / "1" / "model.onnx").read_text() == "weights"
    assert (models / "c" / "2" / "model.onnx").read_text() == "of the user"
    assert not list(models.glob(".seed-*"))


# --- the jobs of Kubernetes for `triton-sam annotate` ----------------------------------------------------------------


FOLDER = bundled("deploy/kubernetes/annotate")


def command_of(name: str) -> list[str]:
    """Return the arguments of the command that a job runs."""
    (job,) = helm.load(FOLDER / name)
    if job["kind"] == "RayJob":
        return shlex.split(job["spec"]["entrypoint"])[1:]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    words = [*container["command"], *container["args"]]
    return [word.replace("$(JOB_COMPLETION_INDEX)", "3") for word in words][1:]


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_command_understands_its_options(path):
    args = build_parser().parse_args(command_of(path.name))
    assert (args.source, args.task, args.out) == ("/data/boxes.json", "boxes", Path("/data/masks"))
    assert args.images == "/data/images"


@pytest.mark.parametrize("name", ["indexed-job.yaml", "finish-job.yaml"])
def test_a_job_has_the_image_of_the_release_and_a_folder_for_temporary_files(name):
    (job,) = helm.load(FOLDER / name)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["image"].rpartition(":")[2] == __version__.partition(".dev")[0]
    assert "/tmp" in {mount["mountPath"] for mount in container["volumeMounts"]}


def test_the_parts_are_as_many_as_the_pods():
    (job,) = helm.load(FOLDER / "indexed-job.yaml")
    part = build_parser().parse_args(command_of("indexed-job.yaml")).part
    assert part == Part(3, job["spec"]["completions"])
    assert job["spec"]["completionMode"] == "Indexed"


def test_the_jobs_of_one_run_differ_in_nothing_that_decides_about_the_masks():
    def deciding(name: str) -> list[str]:
        return [word for word in command_of(name) if not word.startswith(("--part", "--threads"))]

    assert deciding("indexed-job.yaml") == deciding("finish-job.yaml")
    pods = [helm.load(FOLDER / name)[0]["spec"]["template"]["spec"] for name in ("indexed-job.yaml", "finish-job.yaml")]
    assert pods[0]["volumes"] == pods[1]["volumes"]
    assert pods[0]["containers"][0]["image"] == pods[1]["containers"][0]["image"]
