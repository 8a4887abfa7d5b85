"""Options of tritonserver that the documents name exist and work together."""

import re
import subprocess

import httpx
from support.commands import copy_committed

from triton_sam._common.bundle import bundled, checkout
from triton_sam.local_server import LocalServer
from triton_sam.local_server.settings import CUDA_POOL, METRICS

ROOT = checkout()


def test_options_of_tritonserver_exist(tmp_path):
    """Every --option of tritonserver in a document or a manifest exists in the program."""
    from triton_sam.local_server.installation import prepare_triton

    triton = prepare_triton(tmp_path, None, None)
    done = subprocess.run(
        [triton.executable, "--help"], env=triton.environment, capture_output=True, text=True, timeout=60, check=False
    )
    known = set(re.findall(r"--[a-z][a-z-]+", done.stdout + done.stderr))
    document = (ROOT / "docs" / "how-to" / "server-options.md").read_text()
    rows = dict(re.findall(r"(?m)^\| `(--[a-z-]+)`([^|]*)", document.partition("## GPUs")[0]))
    assert len(rows) > 12
    # The local server is older than some options, which the page says beside them. Triton ends at an unknown option.
    newer = {option for option, words in rows.items() if "from release 2" in words}
    assert newer == {"--allow-client-shm", "--http-max-input-size"}
    assert set(rows) - known == newer
    assert {METRICS, CUDA_POOL} <= known


QUEUE_POLICY = """dynamic_batching { default_queue_policy {
  timeout_action: REJECT, default_timeout_microseconds: 5000000, max_queue_size: 64 } }"""


LIMITER = """instance_group [{ count: 1, kind: KIND_CPU,
  rate_limiter { resources [{ name: "R" count: 1 }] priority: 1 } }]"""


OPTIONS = [
    "--rate-limit=execution_count",
    "--rate-limit-resource=R:1:0",
    "--http-restricted-api=shared-memory,logging,trace:admin-key=SECRET",
    "--grpc-restricted-protocol=shared-memory,logging,trace:admin-key=SECRET",
    "--cache-config=local,size=1073741824",
    "--trace-config=mode=opentelemetry",
    "--trace-config=rate=100",
    "--trace-config=level=TIMESTAMPS",
    "--trace-config=opentelemetry,url=http://127.0.0.1:9/v1/traces",
    "--model-load-thread-count=2",
    "--http-thread-count=8",
    "--grpc-infer-response-compression-level=low",
    "--grpc-keepalive-time=7200000",
    "--pinned-memory-pool-byte-size=268435456",
    "--cuda-memory-pool-byte-size=0:1073741824",
]


def test_the_options_of_the_document_work_together(tmp_path):
    """The options of docs/how-to/server-options.md, on a real server, with the config.pbtxt settings that it shows."""
    from triton_sam import SAM2TritonClient

    document = " ".join((ROOT / "docs" / "how-to" / "server-options.md").read_text().split())
    assert all(
        " ".join(text.split()) in document
        for text in (QUEUE_POLICY, 'rate_limiter { resources [{ name: "R" count: 1 }] priority: 1 }')
    )
    for option in OPTIONS:
        assert option.partition("=")[0] in document
    copy_committed(tmp_path, "sam2", "sam2_encoder", "sam2_decoder")
    path = tmp_path / "sam2_decoder" / "config.pbtxt"
    text = path.read_text().replace("dynamic_batching {}", QUEUE_POLICY)
    path.write_text(re.sub(r"(?m)^instance_group.*$", LIMITER, text))
    with LocalServer(
        tmp_path,
        models=["sam2"],
        extra_args=OPTIONS,
    ) as server:
        for url in (server.http_url, server.grpc_url):
            with SAM2TritonClient(url, timeout=120) as client:
                client.set_image(bundled("test/images/shapes.jpg"))
                masks, _ = client.predict([[200, 180]], [1])
            assert (masks[0, 0] > 0).sum() > 100
        for headers, status in (({}, 403), ({"admin-key": "SECRET"}, 200)):
            assert httpx.get(f"{server.http_url}/v2/logging", headers=headers, timeout=60).status_code == status
