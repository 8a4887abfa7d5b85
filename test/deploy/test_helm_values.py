"""The values of the Helm chart: what they do, and which are refused."""

import re

import pytest
import yaml
from support import helm
from support.helm import CASES, ROOT, by_kind, containers, pods, triton

from triton_sam._common.bundle import bundled
from triton_sam.cli import build_parser
from triton_sam.commands._options import MODELS_VARIABLE
from triton_sam.families import FAMILIES
from triton_sam.repository.selection import select_models

PRESETS = yaml.safe_load((helm.CHART / "files/presets.yaml").read_text())


pytestmark = pytest.mark.usefixtures("helm_program")


# --- models and resources


def test_presets_cover_every_official_size():
    sizes = {name: {size.name for size in family.sizes if size.official} for name, family in FAMILIES.items()}
    sizes["sam3"] = {*FAMILIES["sam3"].hub.precisions, "checkpoint"}  # what `triton-sam setup sam3` takes
    assert {name: set(PRESETS[name]) for name in sizes} == sizes
    table = (ROOT / "docs/reference/models.md").read_text()
    rows = re.findall(r"(?m)^\| (SAM\d|MobileSAM|EdgeTAM|SAM-HQ)\S* \| (\w+) \|(?: [^|]+ \|){2} (\d+) \|", table)
    assert len(rows) == 10
    for family, size, megabytes in rows:
        preset = PRESETS[family.lower().replace("-", "")][size]
        assert preset["memory"] >= 2 * int(megabytes) / 1.048576 or preset["memory"] >= 512 > 2 * int(megabytes)
        assert preset["gpuMemory"] >= int(megabytes) + 512


def mebi(quantity: str) -> int:
    return int(quantity.removesuffix("Mi"))


def test_resources_follow_family_and_size():
    minimal, families = triton("minimal")["resources"], triton("families")["resources"]
    assert "nvidia.com/gpu" not in minimal["limits"]
    assert families["limits"]["nvidia.com/gpu"] == "1"
    added = sum(PRESETS[family][size]["memory"] for family, size in
                (("sam1", "vit_h"), ("sam2", "base_plus"), ("sam2", "large")))  # fmt: skip
    server = PRESETS["server"]
    shared = server["sharedMemory"] + (3 + 1) * server["sharedMemoryEach"]  # one of them has a video model
    assert mebi(families["requests"]["memory"]) == server["memory"] + added + shared
    for case in CASES:
        (shm,) = (one for one in pods(case)["sam-triton-sam"][1]["volumes"] if one["name"] == "shm")
        assert shm["emptyDir"]["medium"] == "Memory"
        assert mebi(shm["emptyDir"]["sizeLimit"]) < mebi(triton(case)["resources"]["requests"]["memory"])
    # On a processor /dev/shm also holds the session cache, whose size stands in config.pbtxt.
    values = yaml.safe_load((helm.CHART / "values.yaml").read_text())
    config = (ROOT / "model_repository/sam2/config.pbtxt").read_text()
    assert f'string_value: "{values["sessionCacheMiB"] << 20}"' in config
    (shm,) = (one for one in pods("minimal")["sam-triton-sam"][1]["volumes"] if one["name"] == "shm")
    assert mebi(shm["emptyDir"]["sizeLimit"]) == server["sharedMemory"] + server["sharedMemoryEach"] + 512


def test_nodes_are_chosen_by_their_gpu(tmp_path):
    def expressions(case: str) -> dict[str, list[str]]:
        affinity = pods(case)["sam-triton-sam"][1]["affinity"]["nodeAffinity"]
        (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        return {one["key"]: [one["operator"], *one["values"]] for one in term["matchExpressions"]}

    assert expressions("openshift") == {"nvidia.com/gpu.product": ["In", "NVIDIA-L4", "NVIDIA-A10"]}
    sizes = (PRESETS["sam1"]["vit_h"], PRESETS["sam2"]["base_plus"], PRESETS["sam2"]["large"])
    needed = PRESETS["server"]["gpuMemory"] + sum(size["gpuMemory"] for size in sizes)
    assert expressions("families")["nvidia.com/gpu.memory"] == ["Gt", str(needed - 1)]
    assert "podAntiAffinity" in pods("s3")["sam-triton-sam"][1]["affinity"]
    assert "affinity" not in pods("minimal")["sam-triton-sam"][1]
    # The user's terms are alternatives, so each of them gets the GPU.
    zones = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]} for zone in "ab"]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": zones}}
    values = {"gpu": {"products": ["NVIDIA-L4"]}, "affinity": {"nodeAffinity": required}}
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    (server,) = (one for one in helm.template(tmp_path / "values.yaml") if one["kind"] == "Deployment")
    (rule,) = server["spec"]["template"]["spec"]["affinity"]["nodeAffinity"].values()
    product = {"key": "nvidia.com/gpu.product", "operator": "In", "values": ["NVIDIA-L4"]}
    assert rule["nodeSelectorTerms"] == [{"matchExpressions": [*zone["matchExpressions"], product]} for zone in zones]
    assert pods("openshift")["sam-triton-sam"][1]["runtimeClassName"] == "nvidia"
    assert pods("full")["sam-triton-sam"][1]["tolerations"][0]["key"] == "nvidia.com/gpu"


def test_the_server_loads_the_models_of_the_values():
    def variables(case: str) -> dict[str, str]:
        return {one["name"]: one["value"] for one in triton(case)["env"]}

    assert variables("families")[MODELS_VARIABLE] == "sam1 sam2 sam2.1_large"
    wanted = variables("minimal")[MODELS_VARIABLE].split()
    loaded = {folder.name for folder in select_models(bundled("model_repository"), wanted)}  # the folder of the image
    assert loaded == {"sam2", "sam2_encoder", "sam2_decoder"}
    assert variables("minimal")["TRITON_SAM_REPOSITORY"] == "/opt/triton-sam/model_repository"


def test_every_command_line_is_one_that_the_programs_know():
    parser = build_parser()
    for case in CASES:
        for name, (_, spec) in pods(case).items():
            for container in containers(spec):
                arguments = [*container.get("command", []), *container.get("args", [])]
                if container["name"].startswith("export"):
                    arguments = ["triton-sam", "setup", *arguments]
                if arguments[0] == "triton-sam":
                    assert parser.parse_args(arguments[1:]).command == arguments[1], name
    setups = [one["args"] for one in pods("families")["sam-triton-sam"][1]["initContainers"]]
    assert setups == [
        ["sam1", "vit_h"],
        ["sam2", "base_plus", "--precision=fp16", "--video"],
        ["sam2", "large", "--name=sam2.1_large"],
    ]


def test_a_bucket_is_copied_before_settings_and_server():
    sync, config = pods("s3")["sam-triton-sam"][1]["initContainers"]
    assert sync["args"][:3] == ["sync", ":s3:my-bucket/models/2026-11", "/models"]
    assert {"name": "RCLONE_S3_ENDPOINT", "value": "https://minio.example.org:9000"} in sync["env"]
    assert sync["envFrom"] == [{"secretRef": {"name": "bucket"}}]
    assert [*config["command"], *config["args"]] == [
        *("triton-sam", "config", "sam2", "--accelerator", "tensorrt", "--gpus", "0"),
    ]
    (sync,) = pods("full")["sam-triton-sam"][1]["initContainers"]
    assert sync["args"][1] == ":gcs:my-bucket/models"
    (account,) = by_kind("full", "ServiceAccount")
    assert "iam.gke.io/gcp-service-account" in account["metadata"]["annotations"]


def test_a_token_guards_the_rest_service():
    def token(case: str) -> dict:
        (rest,) = pods(case)["sam-triton-sam-rest"][1]["containers"]
        (found,) = (one for one in rest["env"] if one["name"] == "TRITON_SAM_TOKEN")
        return found["valueFrom"]["secretKeyRef"]

    assert token("openshift") == {"name": "sam-token", "key": "token"}
    (secret,) = by_kind("full", "Secret")
    assert token("full") == {"name": secret["metadata"]["name"], "key": "token"}
    assert secret["stringData"] == {"token": "secret"}


def test_the_rest_service_gets_files_secrets_and_ways_out():
    _, spec = pods("full")["sam-triton-sam-rest"]
    (rest,) = spec["containers"]
    assert rest["env"][-1]["valueFrom"]["secretKeyRef"] == {"name": "label-studio", "key": "token"}
    assert spec["volumes"][-1] == {"name": "tokens", "secret": {"secretName": "sam-tokens"}}
    assert rest["volumeMounts"][-1]["mountPath"] == "/tokens"
    (policy,) = (one for one in by_kind("full", "NetworkPolicy") if one["metadata"]["name"].endswith("-rest"))
    assert policy["spec"]["egress"][-1]["ports"] == [{"port": 8080}]


def test_pods_are_removed_after_the_cooldown():
    """KEDA's own cooldownPeriod acts only between 0 pods and 1; the autoscaler of Kubernetes removes the others."""
    (scaled,) = by_kind("full", "ScaledObject")
    behavior = scaled["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert behavior == {"scaleDown": {"stabilizationWindowSeconds": 1800}}


# --- wrong values


def test_the_schema_finds_all_wrong_values_at_once():
    with pytest.raises(ValueError, match="don't meet the specifications of the schema") as caught:
        helm.template(
            *("gpu.count=none", "gpu.cuont=2", "modelStore.type=nfs", "modelStore.pvc.size=big"),
            *("models[0].size=huge", "models[1].family=sam2,models[1].size=vit_h"),
            *("gateway.canary.weight=101", "openshift.route.target=grafana", "autoscaling.minReplicas=0"),
        )
    found = {line.strip().removeprefix("- ") for line in str(caught.value).splitlines()}
    assert found >= {
        "at '/gpu/count': got string, want integer",
        "at '/gpu': additional properties 'cuont' not allowed",
        "at '/models/0': missing property 'family'",
        "at '/models/1/size': value must be one of 'tiny', 'small', 'base_plus', 'large'",
        "at '/modelStore/type': value must be one of 'pvc', 's3', 'gcs', 'image'",
        "at '/gateway/canary/weight': maximum: got 101, want 100",
        "at '/autoscaling/minReplicas': minimum: got 0, want 1",  # without pods, there is no metric
        "at '/openshift/route/target': value must be one of 'rest', 'triton'",
    }
    assert "at '/modelStore/pvc/size': 'big' does not match" in str(caught.value)


def test_values_that_do_not_fit_each_other_are_one_clear_error(tmp_path):
    values = tmp_path / "values.yaml"
    for text, message in (
        ("modelStore: {type: s3}", "modelStore.type s3 needs modelStore.bucket.path"),
        ("replicas: 2", "several pods need a volume for all"),
        (
            "autoscaling: {enabled: true}\nengineCache: {type: pvc}\nmodelStore: {type: image}",
            "several pods need an engine cache",
        ),
        ("autoscaling: {enabled: true, minReplicas: 9}\nmodelStore: {type: image}", "autoscaling.minReplicas"),
        ("rest: {enabled: true}", "rest.enabled needs a token"),
        ("ingress: {enabled: true}\nrest: {enabled: true, token: {open: true}}", "needs ingress.host and, for TLS"),
        ("gateway: {enabled: true}", "gateway.enabled needs gateway.parentRefs"),
        ("gateway: {enabled: true, target: triton, parentRefs: [{name: edge}]}", "networkPolicy.gatewayNamespaces"),
        ("service: {type: LoadBalancer}", "networkPolicy.extraIngress"),
        ("gateway: {canary: {weight: 5}}", "gateway.canary.weight needs gateway.canary.release"),
        ("openshift: {route: {enabled: true}}", "openshift.route leads to the REST service, which does not run"),
        ("models: [{family: sam2, size: tiny}, {family: sam2, size: large}]", 'two models are served as "sam2"'),
        ("models: []", "minItems: got 0, want 1"),
        ("modelStore: {type: image}\nmodels: [{family: sam2, size: tiny, config: [--gpus, '0']}]", "can be written"),
    ):
        values.write_text(text)
        with pytest.raises(ValueError, match=re.escape(message)) as caught:
            helm.template(values)
        assert str(caught.value).count("Error") == 1
