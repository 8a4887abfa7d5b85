"""The Helm chart: the objects that it renders fit together, and fit the schemas."""

import json
import re

import pytest
import yaml
from support import helm
from support.commands import copy_committed
from support.helm import CASES, ROOT, by_kind, containers, pods, rendered, selected, triton

from triton_sam import __version__
from triton_sam.cli import main

pytestmark = pytest.mark.usefixtures("helm_program")
HEALTH = "/opt/triton-sam/scripts/model_health.py"


# --- what is there


def test_each_part_is_there_when_it_is_asked_for():
    minimal = {name.split("/")[0] for name in rendered("minimal")}
    assert minimal == {"Deployment", "Service", "ServiceAccount", "PodDisruptionBudget", "NetworkPolicy", "Pod"}
    full = {name.split("/")[0] for name in rendered("full")}
    assert full - minimal == {
        *(
            "ScaledObject",
            "ServiceMonitor",
            "PrometheusRule",
            "ConfigMap",
            "Gateway",
            "HTTPRoute",
            "GRPCRoute",
            "Secret",
        ),
    }
    assert {name.split("/")[0] for name in rendered("openshift")} - minimal == {"Route", "PersistentVolumeClaim"}
    assert {name for name in rendered("s3") if name.startswith(("Ingress", "Persistent"))} == {
        *("Ingress/sam-triton-sam", "Ingress/sam-triton-sam-grpc", "PersistentVolumeClaim/sam-triton-sam-engines"),
    }
    assert yaml.safe_load((helm.CHART / "Chart.yaml").read_text())["appVersion"] == __version__.partition(".dev")[0]


def test_the_rest_service_answers_to_the_names_that_lead_to_it():
    def hosts(case: str) -> list[str]:
        args: list[str] = pods(case)["sam-triton-sam-rest"][1]["containers"][0]["args"]
        rest = args[args.index("--allowed-host") + 1 :]
        return rest[: next((number for number, arg in enumerate(rest) if arg.startswith("--")), len(rest))]

    assert [name.count(".") for name in hosts("full")[:4]] == [0, 1, 2, 4]
    assert all(name.split(".")[0] == "sam-triton-sam-rest" for name in hosts("full")[:4])
    assert hosts("full")[4:] == []  # its gateway leads to Triton
    assert hosts("openshift")[4:] == ["sam.apps.example.org"]


@pytest.mark.parametrize("case", CASES)
def test_the_server_is_alive_while_every_model_works(case):
    server = triton(case)
    assert "command" not in server  # it would replace NVIDIA's entry point
    assert server["args"][:2] == ["triton-sam", "container"]
    assert server["livenessProbe"]["exec"]["command"] == ["python3", HEALTH, "--live"]
    assert (ROOT / HEALTH.removeprefix("/opt/triton-sam/")).is_file()
    # Shorter than this, and Kubernetes would end a server that starts again by itself.
    assert server["livenessProbe"]["periodSeconds"] * server["livenessProbe"]["failureThreshold"] >= 120


def test_settings_for_gpus_are_written_before_the_server_starts(tmp_path, monkeypatch):
    config = next(one for one in pods("s3")["sam-triton-sam"][1]["initContainers"] if one["name"].startswith("config"))
    (models,) = (mount for mount in config["volumeMounts"] if mount["mountPath"] == "/models")
    assert not models.get("readOnly")
    assert {"name": "TRITON_SAM_REPOSITORY", "value": "/models"} in config["env"]
    copy_committed(tmp_path, "sam2", "sam2_encoder", "sam2_decoder")
    monkeypatch.setenv("TRITON_SAM_REPOSITORY", str(tmp_path))
    program, *command = [*config["command"], *config["args"]]
    assert program == "triton-sam"
    assert main(command) == 0
    assert "tensorrt" in (tmp_path / "sam2_encoder" / "config.pbtxt").read_text(encoding="utf-8")
    assert "gpus: [0]" in (tmp_path / "sam2" / "config.pbtxt").read_text(encoding="utf-8")


def test_rules_and_dashboard_are_those_of_the_folder_monitoring(helm_program, tmp_path):
    monitoring = ROOT / "deploy/monitoring"
    (rule,) = by_kind("full", "PrometheusRule")
    assert rule["spec"] == yaml.safe_load((monitoring / "rules.yml").read_text())
    assert rule["metadata"]["labels"]["release"] == "kube-prometheus-stack"
    (dashboard,) = by_kind("full", "ConfigMap")
    source = (monitoring / "grafana/dashboards/triton-sam.json").read_text()
    assert json.loads(dashboard["data"]["triton-sam.json"]) == json.loads(source)
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    (monitor,) = by_kind("full", "ServiceMonitor")
    # The alert TritonDown asks for this job.
    (relabeling,) = monitor["spec"]["endpoints"][0]["relabelings"]
    assert f'job=~"{relabeling["replacement"]}.*"' in rule["spec"]["groups"][1]["rules"][0]["expr"]
    # The files are links. A packaged chart holds what they point to.
    assert helm.run([helm_program, "package", helm.CHART, "--destination", tmp_path]).returncode == 0
    (archive,) = tmp_path.glob("*.tgz")
    again = helm.template(helm.CHART / "ci/full-values.yaml", chart=archive)
    assert [one for one in again if one["kind"] == "PrometheusRule"] == [rule]


# --- what refers to what


@pytest.mark.parametrize("case", CASES)
def test_the_objects_of_a_release_fit_together(case):
    check_ports(case)
    check_volumes_claims_and_accounts(case)
    check_policies(case)
    check_security(case)
    if backends(case):
        check_routes(case)


def check_ports(case: str) -> None:
    """Probes and Services name ports that their pods have."""
    for name, (_, spec) in pods(case).items():
        for container in spec["containers"]:
            ports = {port["name"] for port in container.get("ports", [])}
            probes = [container[key] for key in container if key.endswith("Probe")]
            assert {probe["httpGet"]["port"] for probe in probes if "httpGet" in probe} <= ports
            assert bool(probes) == (name != "sam-triton-sam-test")
    for service in by_kind(case, "Service"):
        names = selected(case, {"matchLabels": service["spec"]["selector"]})
        assert len(names) == 1
        (container,) = pods(case)[names.pop()][1]["containers"]
        ports = {port["name"] for port in container["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports


def backends(case: str) -> set[tuple[str, int | str]]:
    """Return name and port of every Service that an Ingress or a route leads to."""
    found = set()
    for ingress in by_kind(case, "Ingress"):
        for path in ingress["spec"]["rules"][0]["http"]["paths"]:
            service = path["backend"]["service"]
            found.add((service["name"], service["port"]["name"]))
    for route in [*by_kind(case, "HTTPRoute"), *by_kind(case, "GRPCRoute")]:
        found |= {(one["name"], one["port"]) for rule in route["spec"]["rules"] for one in rule["backendRefs"]}
    found |= {(one["spec"]["to"]["name"], one["spec"]["port"]["targetPort"]) for one in by_kind(case, "Route")}
    return found


def test_each_way_into_the_cluster_is_rendered():
    assert {case for case in CASES if backends(case)} == {"openshift", "s3", "full"}


def check_routes(case: str) -> None:
    """Every Ingress and route leads to a port of a Service."""
    services = {one["metadata"]["name"]: one["spec"]["ports"] for one in by_kind(case, "Service")}
    reached = {(name, port) for name, port in backends(case) if not name.startswith("candidate")}
    assert reached
    for name, port in reached:
        assert port in {value for one in services[name] for value in (one["name"], one["port"])}
    for name, port in backends(case) - reached:  # the second release has the same Services
        assert (name.replace("candidate", "sam"), port) in reached


def check_volumes_claims_and_accounts(case: str) -> None:
    """Pods name volumes, claims and accounts that the release has."""
    names = set(rendered(case))
    for _, spec in pods(case).values():
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        mounted = {mount["name"] for container in containers(spec) for mount in container["volumeMounts"]}
        assert mounted == set(volumes)
        assert f"ServiceAccount/{spec['serviceAccountName']}" in names
        for volume in volumes.values():
            if "persistentVolumeClaim" in volume:
                assert f"PersistentVolumeClaim/{volume['persistentVolumeClaim']['claimName']}" in names
    (scaled,) = by_kind(case, "ScaledObject") or [None]
    assert scaled is None or f"Deployment/{scaled['spec']['scaleTargetRef']['name']}" in names
    assert ("replicas" in rendered(case)["Deployment/sam-triton-sam"]["spec"]) == (scaled is None)


def check_policies(case: str) -> None:
    """Policies select their pods, and let in and out those that need it."""
    (budget,) = by_kind(case, "PodDisruptionBudget")
    assert selected(case, budget["spec"]["selector"]) == {"sam-triton-sam"}
    policies = {one["metadata"]["name"]: one["spec"] for one in by_kind(case, "NetworkPolicy")}
    for name, policy in policies.items():
        assert selected(case, policy["podSelector"]) == {name}
    server = policies["sam-triton-sam"]
    callers = {one for rule in server["ingress"] for peer in rule["from"] if "podSelector" in peer
               for one in selected(case, peer["podSelector"])}  # fmt: skip
    # A pod can label itself, but not its namespace.
    (client,) = (peer for peer in server["ingress"][0]["from"] if "namespaceSelector" in peer and "podSelector" in peer)
    labels = {"matchLabels": {"triton-sam/clients": "true"}} if case == "full" else {}
    assert client["namespaceSelector"] == labels
    # The release's own pods are named, because its namespace may lack the label of the clients' namespaces.
    own = {name for peer in server["ingress"][0]["from"] if set(peer) == {"podSelector"}
           for name in selected(case, peer["podSelector"])}  # fmt: skip
    assert own == callers == set(pods(case)) - {"sam-triton-sam"}
    exposed = {port["containerPort"] for port in triton(case)["ports"]}
    assert {port["port"] for rule in server["ingress"] for port in rule["ports"]} == exposed
    dns = 5353 if case == "openshift" else 53
    for policy in policies.values():
        assert {"port": dns, "protocol": "UDP"} in policy["egress"][0]["ports"]
    if "sam-triton-sam-rest" in policies:
        (peer,) = policies["sam-triton-sam-rest"]["egress"][1]["to"]
        assert selected(case, peer["podSelector"]) == {"sam-triton-sam"}
    for monitor in by_kind(case, "ServiceMonitor"):
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        found = [one for one in by_kind(case, "Service") if wanted <= one["metadata"]["labels"].items()]
        assert [one["metadata"]["name"] for one in found] == ["sam-triton-sam"]


def test_gateways_and_routers_may_reach_what_they_lead_to():
    def sources(case: str, name: str) -> list[dict]:
        policy = rendered(case)[f"NetworkPolicy/{name}"]
        return [one["namespaceSelector"]["matchLabels"] for one in policy["spec"]["ingress"][0]["from"]
                if "podSelector" not in one]  # fmt: skip

    for name in ("sam-triton-sam", "sam-triton-sam-rest"):
        assert sources("full", name) == [{"kubernetes.io/metadata.name": "envoy-gateway-system"}]
        assert sources("openshift", name) == [{"policy-group.network.openshift.io/ingress": ""}]


def check_security(case: str) -> None:
    """Pods obey the restricted standard of Kubernetes."""
    for _, spec in pods(case).values():
        security = spec["securityContext"]
        assert security["runAsNonRoot"] is True
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False
        # On OpenShift, restricted-v2 refuses a user or group that the chart chooses.
        assert ("runAsUser" in security, "fsGroup" in security) == (
            (False, False) if case == "openshift" else (True, True)
        )
        for container in containers(spec):
            own = container["securityContext"]
            assert own == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert {"name": "HOME", "value": "/tmp"} in container["env"]
            assert "/tmp" in {mount["mountPath"] for mount in container["volumeMounts"]}
            assert container["resources"]["limits"]["memory"]
            assert re.fullmatch(r"\S+/\S+:\S+", container["image"])


def test_a_gateway_offers_only_what_clients_need():
    """Nobody outside may load models, change logs or use shared memory, as in deploy/nginx/nginx.conf."""
    (http,), (grpc,) = by_kind("full", "HTTPRoute"), by_kind("full", "GRPCRoute")
    paths = {match["path"]["value"] for rule in http["spec"]["rules"] for match in rule["matches"]}
    assert paths == {"/v2", "/v2/health", "/v2/models", "/v2/repository/index"}
    ingress = rendered("s3")["Ingress/sam-triton-sam"]["spec"]["rules"][0]["http"]["paths"]
    assert {path["path"] for path in ingress} == paths
    methods = {match["method"]["method"] for rule in grpc["spec"]["rules"] for match in rule["matches"]}
    ingress = rendered("s3")["Ingress/sam-triton-sam-grpc"]["spec"]["rules"][0]["http"]["paths"]
    assert {path["path"].rpartition("/")[2] for path in ingress} == methods
    from tritonclient.grpc import service_pb2

    (service,) = service_pb2.DESCRIPTOR.services_by_name.values()
    assert methods <= {method.name for method in service.methods}
    assert not {name for name in methods if re.match("RepositoryModel|Log|Trace|.*SharedMemory", name)}
    source = "".join(path.read_text() for path in (ROOT / "triton_sam/transport").glob("grpc*.py"))
    called = {name for name in (method.name for method in service.methods) if re.search(rf"\b{name}\b", source)}
    assert called - methods <= {"RepositoryModelLoad", "RepositoryModelUnload"}


def test_a_canary_gets_its_share_or_its_header():
    for kind, port in (("HTTPRoute", 8000), ("GRPCRoute", 8001)):
        named, shared = by_kind("full", kind)[0]["spec"]["rules"]
        assert all(match["headers"] == [{"name": "triton-sam-canary", "value": "true"}] for match in named["matches"])
        assert [one["name"] for one in named["backendRefs"]] == ["candidate-triton-sam"]
        assert shared["backendRefs"] == [
            {"name": "sam-triton-sam", "port": port, "weight": 90},
            {"name": "candidate-triton-sam", "port": port, "weight": 10},
        ]
