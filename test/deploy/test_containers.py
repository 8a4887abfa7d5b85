"""No container runs as root, writes to its root file system, or may gain privileges: Dockerfile and compose file.

test_helm.py has the same for the chart.
"""

import re

import pytest
import yaml

from triton_sam._common.bundle import checkout
from triton_sam.local_server.defaults import CUDA_POOL, METRICS

ROOT = checkout()
SERVICES = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]


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


def test_options_of_triton_have_one_source():
    """`triton-sam container` sets the options that every deployment needs, so no deployment repeats them."""
    assert SERVICES["triton"]["command"] == ["triton-sam", "container"]
    assert SERVICES["triton-second"]["command"] == ["triton-sam", "container"]
    files = [ROOT / "docker-compose.yml", ROOT / "scripts" / "run_triton.sh", *(ROOT / "deploy").rglob("*.yaml")]
    for path in files:
        text = path.read_text(encoding="utf-8")
        assert not [option for option in (METRICS, CUDA_POOL) if option in text], path


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
    """test_nginx_upstreams.py runs nginx with both values."""
    nginx = SERVICES["nginx"]
    assert nginx["environment"]["SERVICE_SERVER"] == "${TRITON_SAM_TOKEN:+service:8080}"
    templates = {f"./{path.relative_to(ROOT)}" for path in (ROOT / "deploy" / "nginx").glob("*.template")}
    assert templates <= {mount.partition(":")[0] for mount in nginx["volumes"]}


def test_nobody_logs_in_to_grafana():
    """Its image creates the user admin with the password admin."""
    environment = SERVICES["grafana"]["environment"]
    assert environment["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert (environment["GF_AUTH_DISABLE_LOGIN_FORM"], environment["GF_AUTH_BASIC_ENABLED"]) == ("true", "false")
    assert not [key for key in environment if "PASSWORD" in key]
