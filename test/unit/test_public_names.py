"""Names that programs import from this package stay where they are; importing it and calling it stay light."""

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

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
        find_in_video track_words wait_for_latest_result VideoRules
    """,
    "triton_sam.client": "AsyncSAM2TritonClient AsyncSamTritonClient SAM2TritonClient SamTritonClient",
    "triton_sam.masks": """
        Polygon Segment full_size_logits mask_to_box mask_to_png mask_to_polygons mask_to_rle overlay resize_logits
        rle_to_mask trace_polygons
    """,
    "triton_sam.transport": "BaseTransport ServerUrl Tensors Transport parse_url",
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
    "aiohttp", "av", "contourpy", "cv2", "fastapi", "filelock", "gevent", "grpc", "huggingface_hub", "matplotlib",
    "onnx", "onnxruntime", "scipy", "skimage", "torch", "transformers", "uvicorn",
}  # fmt: skip


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_stay(module):
    if module == "triton_sam.verify":
        pytest.importorskip("onnxruntime")
    offered = importlib.import_module(module)
    assert [name for name in PUBLIC[module].split() if not hasattr(offered, name)] == []


def test_public_names_are_listed():
    assert set(triton_sam.__all__) == set(PUBLIC["triton_sam"].split())


def loaded_by(program):
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


# A click, a frame of a video, and a setup pass few functions

PROGRAM = Path(__file__).parents[2] / "tools/maintain/count_calls.py"


def count(what):
    counted = subprocess.run([sys.executable, PROGRAM, what], capture_output=True, text=True, check=True, timeout=300)
    found = re.findall(rf"^{what}, ([a-z ]+): (\d+) functions", counted.stdout, re.MULTILINE)
    return {side: int(number) for side, number in found}


@pytest.mark.parametrize(("what", "most"), [("click", 35), ("frame", 40)])
def test_a_click_and_a_frame_pass_few_functions_on_each_side(what, most):
    """For a frame, opening images is not counted; in the server, it is two requests."""
    found = count(what)
    assert 20 < found["client"] <= most
    assert 20 < found["model"] <= most


def test_13_functions_lead_from_the_command_line_to_the_files():
    pytest.importorskip("onnx", reason="needs the local extra")
    assert 5 < count("setup")["on the way"] <= 13
