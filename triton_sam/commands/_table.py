"""The commands of `triton-sam` by group, each with its line in the help. Modules are named like their commands."""

from __future__ import annotations

import textwrap

GROUPS = {
    "segment": {
        "demo": "Segment two images on a real Triton and show the masks.",
        "predict": "Segment images by points, boxes or words: masks, overlays, cut-outs, COCO, polygons or JSON.",
        "everything": "Segment all objects of images without prompts: overlay, COCO, label image, JSON Lines.",
        "annotate": "Annotate many images from boxes, points, rough masks or words, or find all objects.",
        "large": "Segment objects in large images, part by part: slides, aerial photographs, maps.",
        "track": "Track objects through a video: prompt them in one frame, get their masks in all of them.",
    },
    "servers": {
        "serve": "Serve a model repository with a real Triton on this machine, without Docker.",
        "service": "Run the SAM service: a web page for clicks, a REST API, and the REST API of 2024.",
        "container": "Start Triton inside the Docker image, with every model that has weights.",
        "health": "Send a test request to every served model.",
        "doctor": "Check this machine and a server, and name the command that fixes each problem.",
        "reload": "Reload models on a running server.",
    },
    "models": {
        "setup": "Download and export an official checkpoint, a known fine-tune, or your own URL or file.",
        "download": "Download an official checkpoint; rerun to continue, and the SHA-256 is checked.",
        "export": "Export a checkpoint as the ONNX models of its family into the model repository.",
        "models": "List the models of a repository and those that a server has ready, or the catalogue of checkpoints.",
        "alias": "Add alternative model names for existing clients.",
        "config": "Set accelerator, devices and instances of models in their config.pbtxt.",
    },
    "measurements": {
        "verify": "Compare exported and served models with the official predictors.",
        "evaluate": "Measure how well a served model segments images or tracks objects, against ground truth.",
        "benchmark": "Measure a server: latency, throughput, other runners, a moving mouse, load.",
    },
    "shell": {
        "completion": "Print the completion of `triton-sam` for a shell.",
    },
}

_WIDTH = 100


def list_of_commands() -> str:
    """Return the help text that lists the commands by group."""
    indent = max(len(name) for group in GROUPS.values() for name in group) + 4
    lines = []
    for title, group in GROUPS.items():
        lines += ["", f"{title}:"]
        for name, text in group.items():
            first, *rest = textwrap.wrap(text, _WIDTH - indent)
            lines += [f"  {name:<{indent - 2}}{first}", *(" " * indent + line for line in rest)]
    return "\n".join(lines)
