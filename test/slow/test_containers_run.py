"""The containers of the compose file, built from the Dockerfile and run with Podman.

The base images are stand-ins (see `support/containers.py`). They show nothing of a GPU, of NVIDIA's own image with its
C++ backend, of Grafana, and of health checks by a timer.
"""

import re
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from support import containers
from support.conditions import eventually
from support.containers import TOKEN, click, segment
from support.fresh_clone import check_mask, fresh_clone, infer_example, served
from support.nginx_proxy import free_ports, make_tls

from triton_sam._common.bundle import checkout

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3000),
    pytest.mark.nightly,  # the images take five minutes
    pytest.mark.skipif(bool(containers.missing()), reason=containers.missing() or "-"),
    # Python's ssl module does not close a socket whose peer resets it before the handshake, as a port without a server
    # behind it does.
    pytest.mark.filterwarnings("ignore:Exception ignored in. <ssl.SSLSocket:pytest.PytestUnraisableExceptionWarning"),
]

PROFILES = ("--profile", "service", "--profile", "tls", "--profile", "monitoring", "--profile", "second")
STARTED = ("triton", "service", "nginx", "prometheus")
PORTS = ("HTTP", "GRPC", "METRICS", "SERVICE", "TLS_HTTP", "TLS_GRPC", "PROMETHEUS")
CLONED_TAG = "26.98-py3"


@pytest.fixture(scope="module")
def deployment(request, tmp_path_factory):
    """Build every image, start the compose file with its profiles, and yield how to reach it."""
    with containers.podman(tmp_path_factory.mktemp("podman"), f"sam{uuid.uuid4().hex[:6]}") as engine:
        compose = _write_compose_file(engine)
        names = [f"{name}_PORT" for name in PORTS]
        ports = dict(zip(names, free_ports(len(names)), strict=True))
        settings = {**ports, "TLS_ADDRESS": "127.0.0.1", "TRITON_SAM_TOKEN": TOKEN, "TRITON_TAG": _default_tag(engine)}
        settings["SERVICE_OPTIONS"] = "--adapter osam cvat"
        _write_settings(engine, settings)
        token = make_tls(engine.directory / "deploy/nginx/tls")
        containers.give_to_containers(engine.directory)
        try:
            engine.build_stand_ins(_base_images(engine, compose))
            nginx = _nginx_version(engine, compose)
        except (containers.MachineError, AssertionError) as error:
            pytest.skip(str(error))
        if nginx < (1, 27, 3):
            pytest.skip("nginx 1.27.3 or newer could not be installed")
        for service in ("triton", "triton-cpu", "service"):
            engine.compose(*PROFILES, "--profile", "cpu", "build", service, timeout=1200)
        engine.compose(*PROFILES, "up", "--detach", *STARTED)
        running = SimpleNamespace(
            engine=engine,
            settings=settings,
            http=f"http://127.0.0.1:{ports['HTTP_PORT']}",
            grpc=f"grpc://127.0.0.1:{ports['GRPC_PORT']}",
            https=f"https://localhost:{ports['TLS_HTTP_PORT']}",
            grpcs=f"grpcs://localhost:{ports['TLS_GRPC_PORT']}",
            service=f"http://127.0.0.1:{ports['SERVICE_PORT']}",
            tls={
                "ca_certs": engine.directory / "deploy/nginx/tls/ca.crt",
                "headers": {"Authorization": f"Bearer {token}"},
            },
        )
        failed = request.session.testsfailed
        try:
            eventually(lambda: click(running.http), 120)
            eventually(lambda: segment(running), 60)
            yield running
        finally:
            if request.session.testsfailed > failed or sys.exc_info()[0] is not None:
                print(engine.last_words())


def test_a_click_through_every_door_is_the_same(deployment):
    """Triton's two protocols, HTTPS and gRPC over TLS through nginx, and the service answer with equal masks."""
    expected = click(deployment.http)
    assert expected.any()
    assert not expected.all()
    # Podman lists name servers of the host, too, which do not find containers.
    assert len(re.findall(r"[\d.]{7,}", deployment.engine.execute("nginx", "cat", "/tmp/resolver.conf"))) == 1
    for url, options in ((deployment.grpc, {}), (deployment.https, deployment.tls), (deployment.grpcs, deployment.tls)):
        # nginx looks the name of Triton up some seconds after its start.
        mask = eventually(lambda url=url, options=options: click(url, **options), 30)
        np.testing.assert_array_equal(mask, expected, err_msg=url)
    answer = segment(deployment)
    assert answer["masks"][0]["area"] == int(expected.sum())


@pytest.mark.parametrize("service", STARTED)
def test_a_container_has_few_rights(deployment, service):
    engine = deployment.engine
    assert engine.execute(service, "id", "-u") != "0"
    status = dict(
        line.split(":\t", 1)
        for line in engine.execute(service, "cat", "/proc/self/status").splitlines()
        if ":\t" in line
    )
    assert int(status["CapBnd"], 16) == 0
    assert status["NoNewPrivs"] == "1"
    engine.execute(service, "sh", "-c", "if touch /written 2>/dev/null; then exit 1; fi")


def test_everybody_finds_a_server_that_was_killed_and_started(deployment):
    """The container has a new address then: clients of Triton, the service and nginx find it again by themselves."""
    engine = deployment.engine
    expected, before = click(deployment.http), engine.address("triton")
    triton = engine.container("triton")
    engine.run("kill", "--signal", "KILL", triton)
    engine.run("container", "cleanup", triton, check=False)  # Podman does this, too, but later
    try:
        with occupied(engine, before):
            engine.run("start", triton)
            assert engine.address("triton") != before
            np.testing.assert_array_equal(eventually(lambda: click(deployment.http), 60), expected)
            for url in (deployment.https, deployment.grpcs):
                np.testing.assert_array_equal(eventually(lambda url=url: click(url, **deployment.tls), 60), expected)
            assert eventually(lambda: segment(deployment), 60)["masks"][0]["area"] == int(expected.sum())
    finally:
        engine.run("start", triton)  # for the tests after this one, if it fails; a container that runs goes on


def test_two_scripts_of_a_fresh_clone_end_in_a_mask(deployment, tmp_path):
    """scripts/run_triton.sh builds the image and starts a container, which scripts/infer_example.sh asks for a mask."""
    engine = deployment.engine
    base = "nvcr.io/nvidia/tritonserver"
    engine.run("tag", f"{base}:{deployment.settings['TRITON_TAG']}", f"{base}:{CLONED_TAG}")
    clone = fresh_clone(checkout(), tmp_path / "clone")
    variables = {"CONTAINER_ENGINE": "podman", "CONTAINER_NAME": f"{engine.project}-clone", "TRITON_TAG": CLONED_TAG}
    with served(clone, tmp_path / "log", {**engine.environment, **variables}, seconds=500) as port:
        check_mask(infer_example(clone, port))
        words = engine.run("exec", variables["CONTAINER_NAME"], "cat", "/proc/1/cmdline")
    assert f"building triton-sam:{CLONED_TAG}" in (tmp_path / "log").read_text()
    assert "--cuda-memory-pool-byte-size=0:1073741824" in words
    assert engine.run("ps", "--all", "--quiet", "--filter", f"name={variables['CONTAINER_NAME']}") == ""


def test_the_image_for_processors(deployment):
    """Profile `cpu`: Triton with the backend of the local server, in a container of its own with as few rights."""
    engine = deployment.engine
    expected = click(deployment.http)
    engine.compose(*PROFILES, "down", "--timeout", "40")  # both listen on the same ports
    engine.compose("--profile", "cpu", "up", "--detach", "triton-cpu")
    np.testing.assert_array_equal(eventually(lambda: click(deployment.http), 120), expected)
    assert engine.is_healthy("triton-cpu")
    assert engine.execute("triton-cpu", "id", "-u") == "1000"
    started = time.monotonic()
    engine.run("stop", "--time", "40", engine.container("triton-cpu"))
    assert time.monotonic() - started < 20
    assert engine.inspect("triton-cpu")["State"]["ExitCode"] == 0


# --- the image `export`, as the compose file runs it -----------------------------------------------------------------

SETTINGS = ("--profile", "export", "run", "--rm", "-T")
CLOSED = "http://127.0.0.1:9"
"""A mirror that nobody serves."""


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """Give a Podman that has built the image, with a checkout whose folders belong to the container's user."""
    with containers.podman(tmp_path_factory.mktemp("podman"), f"sam{uuid.uuid4().hex[:6]}") as podman:
        _write_compose_file(podman)
        try:
            podman.build_stand_ins({f"docker.io/library/python:{_default_tag(podman, 'PYTHON_TAG')}": "python"})
        except containers.MachineError as error:
            pytest.skip(str(error))
        (podman.directory / "models").mkdir()
        containers.give_to_containers(podman.directory)
        podman.compose("--profile", "export", "build", "export", timeout=2400)
        yield podman


@pytest.fixture
def repository(engine, monkeypatch):
    """Give the folder that the compose file mounts as the model repository."""
    monkeypatch.setitem(engine.environment, "MODEL_REPOSITORY", "./models")
    return engine.directory / "models"


def test_the_entry_point_fills_an_empty_volume_and_names_an_unreachable_mirror(engine, repository):
    with pytest.raises(AssertionError) as caught:
        engine.compose(*SETTINGS, "-e", f"TRITON_SAM_MIRROR={CLOSED}", "export", "sam2", "tiny")
    assert "127.0.0.1:9" in str(caught.value)
    assert "Traceback" not in str(caught.value)
    assert (repository / "sam2_encoder" / "1" / "model.onnx").is_file()
    assert (repository / "sam2" / "config.pbtxt").is_file()
    assert list(repository.rglob("*.onnx.*")) == []


def test_an_export_writes_models_that_work_here(engine, repository):
    """The image has no PyTorch: it fills the template of the family with the weights of a checkpoint."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("mobile_sam")
    from triton_sam.export import registry

    model = registry.exporter("mobilesam").load(None, "vit_t", image_size=None, random_seed=0)
    torch.save(model.state_dict(), engine.directory / "checkpoints" / "seeded.pt")
    command = ["export", "mobilesam", "--checkpoint", "/checkpoints/seeded.pt", "--name", "mobilesam_seeded"]
    engine.compose(*SETTINGS, "--entrypoint", "triton-sam", "export", *command, timeout=1200)
    path = repository / "mobilesam_seeded_encoder" / "1" / "model.onnx"
    assert path.stat().st_uid == 1000
    session = pytest.importorskip("onnxruntime").InferenceSession(str(path), providers=["CPUExecutionProvider"])
    image = np.zeros((1, 3, 1024, 1024), np.float32)
    (embeddings, *_) = session.run(None, {session.get_inputs()[0].name: image})
    assert np.isfinite(embeddings).all()


# --- helpers ---------------------------------------------------------------------------------------------------------


@contextmanager
def occupied(engine: containers.Podman, address: str) -> Iterator[None]:
    """Let another container take an address of the network, so that the next one to start gets a new address."""
    network = ["--network", f"{engine.project}_default", "--ip", address]
    command = ["run", "--detach", *network, containers.BASE, "sleep", "900"]
    deadline = time.monotonic() + 120
    while (taken := engine.run(*command, check=False)) == "":  # the address is free when Podman has cleaned up
        assert time.monotonic() < deadline, f"{address} does not become free"
        time.sleep(1)
    try:
        yield
    finally:
        engine.run("rm", "--force", "--time", "0", taken)


def _write_compose_file(engine: containers.Podman) -> dict[str, Any]:
    """Write the compose file that this machine can run, and return it."""
    compose = containers.fit_to_machine(yaml.safe_load((engine.directory / "docker-compose.yml").read_text()))
    engine.compose_file.write_text(yaml.safe_dump(compose), encoding="utf-8")
    return compose


def _default_tag(engine: containers.Podman, name: str = "TRITON_TAG") -> str:
    found = re.search(rf"(?m)^ARG {name}=(\S+)", (engine.directory / "Dockerfile").read_text(encoding="utf-8"))
    assert found is not None
    return found[1]


def _base_images(engine: containers.Podman, compose: dict[str, Any]) -> dict[str, str]:
    """Return the base images that the Dockerfile and the compose file name, each with its stand-in."""
    images = {
        f"docker.io/library/python:{_default_tag(engine, 'PYTHON_TAG')}": "python",
        f"nvcr.io/nvidia/tritonserver:{_default_tag(engine)}": "tritonserver",
    }
    for service in ("nginx", "prometheus"):
        name = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", compose["services"][service]["image"])
        images[f"docker.io/{name if '/' in name else 'library/' + name}"] = service
    return images


def _nginx_version(engine: containers.Podman, compose: dict[str, Any]) -> tuple[int, ...]:
    (image,) = (name for name, target in _base_images(engine, compose).items() if target == "nginx")
    said = engine.run("run", "--rm", "--entrypoint", "sh", image, "-c", "nginx -v 2>&1")
    found = re.search(r"nginx/([\d.]+)", said)
    assert found is not None, said
    return tuple(map(int, found[1].split(".")))


def _write_settings(engine: containers.Podman, settings: dict[str, Any]) -> None:
    lines = "".join(f"{name}={value}\n" for name, value in settings.items())
    (engine.directory / ".env").write_text(lines, encoding="utf-8")
