"""Names that programs import from this package stay where they are, and importing it stays light."""

import importlib
import inspect
import json
import subprocess
import sys

import pytest

import triton_sam

PUBLIC = {
    "triton_sam": """
        SAM2AutomaticMaskGenerator SamAutomaticMaskGenerator
        AsyncSAM2TritonClient AsyncSamTritonClient
        AsyncSAM2VideoClient SAM2VideoClient UnknownSessionError VideoError VideoSegment
        CheckpointError ChecksumError Cleanup ConfigurationError DownloadError ExportError ImageEmbeddings ImageError
        InferenceError InputError LocalServerError MissingDependencyError ModelNotReadyError NoImageError PortInUseError
        PromptError RepositoryError SAM2TritonClient SamError SamTritonClient Segment ServerBusyError ServerError
        ServerTimeoutError ServerUnreachableError SpeculativeSAM2Client __version__ fetch_image queue_multiple_requests
        find_in_video wait_for_latest_result
    """,
    "triton_sam.client": "AsyncSAM2TritonClient AsyncSamTritonClient SAM2TritonClient SamTritonClient",
    "triton_sam.masks": """
        Polygon Segment full_size_logits mask_to_box mask_to_png mask_to_polygons mask_to_rle overlay resize_logits
        rle_to_mask trace_polygons
    """,
    "triton_sam.transport": """
        CONNECT_TIMEOUT GRPC_GRACE RETRY_PAUSE Result Tensors Transport map_error
    """,
    "triton_sam.repository": """
        BUILT_IN_CHECKPOINT CONFIG_NAME REPOSITORY_VARIABLE RepositoryModel check_name config_for default_repository
        list_models pair_names parse_config version_folders weights_in
    """,
    "triton_sam.verify": "BARS Bars OnnxClient Row format_table verify verify_sam2",
    "triton_sam.errors": """
        CheckpointError ChecksumError ConfigurationError DownloadError ExportError ImageError InferenceError InputError
        LocalServerError MissingDependencyError ModelNotReadyError NoImageError PortInUseError PromptError
        RepositoryError SamError ServerBusyError ServerError ServerTimeoutError ServerUnreachableError UnknownImageError
    """,
}
HEAVY = {
    "aiohttp", "av", "contourpy", "cv2", "fastapi", "filelock", "gevent", "huggingface_hub", "matplotlib", "onnx",
    "onnxruntime", "scipy", "skimage", "torch", "transformers", "uvicorn",
}  # fmt: skip


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_stay(module):
    if module == "triton_sam.verify":
        pytest.importorskip("onnxruntime")
    offered = importlib.import_module(module)
    assert [name for name in PUBLIC[module].split() if not hasattr(offered, name)] == []


def test_public_names_are_listed():
    assert set(triton_sam.__all__) == set(PUBLIC["triton_sam"].split())


def loaded_by(program: str) -> set[str]:
    """Return the names of the modules that a program has loaded at its end."""
    program = f"import json, sys; {program}; print(json.dumps(list(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(json.loads(answer.stdout))


@pytest.mark.parametrize("names", ["SAM2TritonClient", "SAM2VideoClient, AsyncSAM2VideoClient"])
def test_the_import_loads_nothing_heavy(names):
    loaded = loaded_by(f"from triton_sam import {names}")
    assert "numpy" in loaded
    assert {name.partition(".")[0] for name in loaded}.isdisjoint(HEAVY)
    assert ("triton_sam.client.video" in loaded) == ("Video" in names)


@pytest.mark.parametrize("name", ["SAM2TritonClient", "AsyncSAM2TritonClient", "SpeculativeSAM2Client"])
def test_prompts_have_types(name):
    """Only parameters that are passed on, such as those of everything(), are typed as Any."""
    client = getattr(triton_sam, name)
    found = 0
    for method in (getattr(client, each) for each in dir(client) if not each.startswith("_")):
        for parameter in inspect.signature(method).parameters.values() if callable(method) else ():
            annotation = str(parameter.annotation)
            if parameter.name in ("point_coords", "point_labels", "box", "mask_input"):
                found += 1
                assert annotation == "PromptArray", (method, parameter)
            elif parameter.name != "self" and parameter.kind is not parameter.VAR_KEYWORD:
                assert parameter.annotation is not parameter.empty, (method, parameter)
                assert "Any" not in annotation, (method, parameter)
    assert found >= 8
