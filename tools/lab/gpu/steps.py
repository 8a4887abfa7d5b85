"""The measurements for measure.py. Each is a function that fills a table of figures."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import statistics
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

ROOT = Path(os.environ.get("GPU_ROOT", Path(__file__).resolve().parents[2])).absolute()
REPOSITORY = ROOT / "repository"
PRECISIONS = ("fp32", "fp16")
QUICK = bool(os.environ.get("GPU_REHEARSAL"))
"""A rehearsal on a CPU: few repetitions."""
MANY = 2 if QUICK else 16
"""Objects of the second video."""
MAIN = "cpp" if (ROOT / "backends").is_dir() else "python"
"""The backend of most steps: NVIDIA's in C++, or the Python-based one if the parts contain none."""
DEVICE = "cpu" if QUICK else "cuda"
PROVIDER = "CPUExecutionProvider" if QUICK else "CUDAExecutionProvider"
Result = dict[str, Any]
NOISY = ("tiny", "base_plus")
"""Sizes with random weights. They are measured with logits, because their masks are noise, whose run lengths take many
times longer than those of real masks."""


def photographs(count: int, size: tuple[int, int] = (1600, 1200)) -> list[bytes]:
    """Return different JPEG files: a photograph, shifted by some pixels."""
    source = Image.open(ROOT / "project" / "images" / "street.jpg").convert("RGB").resize((size[0] + 64, size[1] + 64))
    files = []
    for number in range(count):
        x, y = number % 8 * 8, number // 8 % 8 * 8
        stream = io.BytesIO()
        source.crop((x, y, x + size[0], y + size[1])).save(stream, "JPEG", quality=90)
        files.append(stream.getvalue())
    return files


def clip(frames: int, size: tuple[int, int] = (1280, 720)) -> list[np.ndarray]:
    """Return a drawn video: discs that move over a photograph."""
    background = Image.open(ROOT / "project" / "images" / "street.jpg").convert("RGB").resize(size)
    images = []
    for frame in range(frames):
        image = background.copy()
        draw = ImageDraw.Draw(image)
        for number in range(16):
            x, y = 120 + number % 4 * 280 + 2 * frame, 90 + number // 4 * 170 + frame
            draw.ellipse((x - 40, y - 40, x + 40, y + 40), fill=(40 * (number % 6), 255 - 15 * number, 90 + 9 * number))
        images.append(np.asarray(image))
    return images


def places(objects: int) -> list[list[float]]:
    """Return the centres of the first discs in the first frame."""
    return [[120 + number % 4 * 280, 90 + number // 4 * 170] for number in range(objects)]


def summary(seconds: list[float]) -> Result:
    """Return median and 95th percentile in milliseconds."""
    return {"p50": 1e3 * statistics.median(seconds), "p95": 1e3 * float(np.percentile(seconds, 95)), "n": len(seconds)}


def timed(act: Callable[[], Any], count: int, warm: int = 3, sync: Callable[[], Any] | None = None) -> Result:
    """Call a function and return the summary of its times."""
    seconds = []
    for number in range(warm + count):
        began = time.perf_counter()
        act()
        if sync:
            sync()
        if number >= warm:
            seconds.append(time.perf_counter() - began)
    return summary(seconds)


def urls(backend: str, size: str) -> dict[str, str]:
    return json.loads((ROOT / f"server-{backend}-{size}.json").read_text())


def used_memory() -> str:
    if QUICK:
        return ""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader"]
    return subprocess.run(query, check=False, capture_output=True, text=True).stdout.strip()


def models(result: Result, size: str) -> None:
    """Write the checkpoint of a size, and export it in both precisions."""
    import torch

    from triton_sam.export import registry
    from triton_sam.export.sam2.recipe import CONFIG_OF_SIZE, EXPORTER
    from triton_sam.export.settings import Settings

    checkpoint = ROOT / f"sam2.1_hiera_{size}.pt"
    if size in NOISY:
        drawn = EXPORTER.load(None, CONFIG_OF_SIZE[size], random_seed=0)
        torch.save({"model": drawn.state_dict()}, checkpoint)
    else:
        shutil.copy(ROOT / "project" / checkpoint.name, checkpoint)
    for precision in PRECISIONS:
        variant = f"{size}_{precision}"
        settings = Settings(REPOSITORY, checkpoint, CONFIG_OF_SIZE[size], name=variant, video=True, precision=precision)
        registry.export("sam2", settings)
    result["bytes"] = sum(file.stat().st_size for file in REPOSITORY.glob(f"{size}_*/*/*.onnx"))


def official(size: str) -> Any:
    """Return the official model with the weights of a size, on the device."""
    from triton_sam.export.sam2.recipe import CONFIG_OF_SIZE, EXPORTER

    return EXPORTER.load(ROOT / f"sam2.1_hiera_{size}.pt", CONFIG_OF_SIZE[size]).to(DEVICE)


def provider(result: Result, size: str) -> None:
    """Run encoder and decoder in this process with the tensors on the device, and record the execution provider."""
    import onnxruntime as ort

    if not QUICK:
        ort.preload_dlls()
    for precision in PRECISIONS:
        for tf32 in ("1", "0") if precision == "fp32" and not QUICK else ("1",):
            options = [(PROVIDER, {"use_tf32": tf32})] if not QUICK else [PROVIDER]
            name = f"{size}_{precision}"
            files = {part: str(REPOSITORY / f"{name}_{part}" / "1" / "model.onnx") for part in ("encoder", "decoder")}
            sessions = {part: ort.InferenceSession(file, providers=options) for part, file in files.items()}
            device = "cpu" if QUICK else "cuda"
            binding = sessions["encoder"].io_binding()
            image = np.random.default_rng(0).random((1, 3, 1024, 1024), np.float32)
            binding.bind_ortvalue_input("image", ort.OrtValue.ortvalue_from_numpy(image, device, 0))
            outputs = [node.name for node in sessions["encoder"].get_outputs()]
            for output in outputs:
                binding.bind_output(output, device, 0)
            encode = timed(lambda: sessions["encoder"].run_with_iobinding(binding), 3 if QUICK else 30)
            embeddings = dict(zip(outputs, binding.get_outputs(), strict=True))
            click = sessions["decoder"].io_binding()
            for output in outputs:
                click.bind_ortvalue_input(output, embeddings[output])
            click.bind_cpu_input("point_coords", np.array([[[400, 500]]], np.float32))
            click.bind_cpu_input("point_labels", np.array([[1]], np.float32))
            for output in ("masks", "iou_predictions"):
                click.bind_output(output, "cpu", 0)
            decode = timed(lambda: sessions["decoder"].run_with_iobinding(click), 5 if QUICK else 100)
            chosen = sessions["encoder"].get_providers()[0]
            key = precision if precision == "fp16" or QUICK else f"{precision} tf32={tf32}"
            result[key] = {"encode": encode, "decode": decode, "provider": chosen}
            if chosen != PROVIDER:
                raise RuntimeError(f"the encoder of {name} ran with {chosen}")


def exactness(result: Result, size: str) -> None:
    """Compare served masks with the official predictor in FP32 on the same device."""
    from triton_sam import SAM2TritonClient
    from triton_sam.verify.compare import verify_sam2

    model, served = official(size), urls(MAIN, size)
    for precision in PRECISIONS:
        client = SAM2TritonClient(served["http"], model_name=f"{size}_{precision}")
        rows = verify_sam2(model, photographs(1)[0], {"served": client})
        result[precision] = {
            "prompts": len(rows),
            "least IoU": min(row.iou for row in rows),
            "largest logit difference": max(row.logit_diff for row in rows),
            "largest score difference": max(row.score_diff for row in rows),
        }


def clicks(result: Result, backend: str, size: str, protocols: tuple[str, ...] = ("http", "grpc")) -> None:
    """Measure encodes and clicks of one user."""
    from triton_sam import SAM2TritonClient

    rng, files = np.random.default_rng(0), photographs(6 if QUICK else 48)
    boxes = [[100 + 14 * number, 100, 300 + 14 * number, 400] for number in range(2 if QUICK else 64)]
    few = 5 if QUICK else 200
    for precision in PRECISIONS:
        for number, protocol in enumerate(protocols):
            figures = result[f"{precision} {protocol}"] = {}
            with SAM2TritonClient(
                urls(backend, size)[protocol], model_name=f"{size}_{precision}", timeout=120
            ) as client:
                chosen = iter(files[number::2])
                figures["encode"] = timed(lambda: client.set_image(next(chosen)), len(files[number::2]) - 2, 2)

                def click(logits: bool, client: SAM2TritonClient = client) -> None:
                    client.segment([rng.uniform((0, 0), (1600, 1200)).tolist()], [1], logits=logits)

                figures["click, logits"] = timed(lambda: click(True), few)
                if size not in NOISY:
                    figures["click, run lengths"] = timed(lambda: click(False), few)
                figures["boxes"] = timed(lambda: client.predict(box=boxes), 1 if QUICK else 10, 1)
        for part in ("encoder", "decoder"):
            result[f"{precision} {part} in Triton, ms"] = inside(backend, size, f"{size}_{precision}_{part}")
    result["memory"] = used_memory()


def inside(backend: str, size: str, model: str) -> Result:
    """Return the mean milliseconds per request of a model, from Triton's statistics."""
    with urllib.request.urlopen(f"{urls(backend, size)['http']}/v2/models/{model}/stats") as answer:
        found = json.load(answer)["model_stats"][0]["inference_stats"]
    parts = ("queue", "compute_input", "compute_infer", "compute_output")
    return {part: round(found[part]["ns"] / max(1, found[part]["count"]) / 1e6, 2) for part in parts}


def crowd(result: Result, size: str, users: int = 16) -> None:
    """Simulate concurrent users who encode different images and click."""
    from triton_sam import SAM2TritonClient

    span = 2.0 if QUICK else 4.0
    for precision in PRECISIONS:
        clients = [
            SAM2TritonClient(urls(MAIN, size)["grpc"], model_name=f"{size}_{precision}", timeout=120)
            for _ in range(users)
        ]
        files = photographs(64)
        for kind in ("encode", "click"):
            seconds: list[float] = []
            end = time.perf_counter() + span

            def work(user: int, kind: str = kind, end: float = end, seconds: list[float] = seconds) -> None:
                number = user
                if kind == "click":
                    clients[user].set_image(files[user])
                while time.perf_counter() < end:
                    began = time.perf_counter()
                    if kind == "encode":
                        number += users
                        # With a byte after the end of a JPEG file, it is another image for the server's cache.
                        clients[user].set_image(files[number % 64] + bytes([number // 64 % 256]))
                    else:
                        clients[user].predict([[number % 1600, 600]], [1])
                        number += 7
                    seconds.append(time.perf_counter() - began)

            threads = [threading.Thread(target=work, args=(user,)) for user in range(users)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            result[f"{precision} {kind}"] = {**summary(seconds), "a second": len(seconds) / span}
        for client in clients:
            client.close()
    result["memory"] = used_memory()


def video(result: Result, size: str, objects: int) -> None:
    """Track objects through a clip with the client and with the official predictor."""
    from triton_sam.client.video.sync import SAM2VideoClient

    frames = clip(11 if QUICK else 96)
    for precision in PRECISIONS[-1:] if QUICK else PRECISIONS:
        address = urls(MAIN, size)["grpc"]
        with SAM2VideoClient(address, f"{size}_{precision}", timeout=120) as client, client.open(frames) as opened:
            for number, place in enumerate(places(objects)):
                opened.add(0, number + 1, [place], [1])
            result[precision] = rate(opened.propagate(logits=size in NOISY))
    result["memory"] = used_memory()


def rate(steps: Iterator[Any]) -> Result:
    """Return the frame rate from the eighth frame on, which attends to seven memories."""
    times = [time.perf_counter() for _ in steps]
    spans = np.diff(times)[8:]
    return {"frames a second": 1 / float(spans.mean()), **summary(spans.tolist())}


def everything(result: Result, size: str) -> None:
    """Find all objects of an image of 1024 x 1024 pixels with 32 x 32 points."""
    from triton_sam import SAM2TritonClient

    for precision in PRECISIONS:
        client = SAM2TritonClient(urls(MAIN, size)["grpc"], model_name=f"{size}_{precision}", timeout=240)
        files = iter(photographs(4, (1024, 1024)))
        found = []
        result[precision] = timed(
            lambda: found.append(len(client.everything(next(files), points_per_side=2 if QUICK else 32))),
            1 if QUICK else 3,
            1,
        )
        result[precision]["objects"] = found[-1]


@contextlib.contextmanager
def arithmetic(kind: str) -> Iterator[None]:
    """Run PyTorch in FP32 or, as Meta's documentation recommends, under bfloat16 autocast."""
    import torch

    with torch.inference_mode(), torch.autocast(DEVICE, torch.bfloat16) if kind == "bf16" else contextlib.nullcontext():
        yield


def torch_image(result: Result, size: str, compiled: bool = False) -> None:
    """Measure the official predictor: set_image and predict."""
    import torch
    from sam2.sam2_image_predictor import SAM2ImagePredictor

    sync = torch.cuda.synchronize if not QUICK else None
    image = np.asarray(Image.open(io.BytesIO(photographs(1)[0])))
    model = official(size)
    if compiled:
        model.image_encoder.forward = torch.compile(model.image_encoder.forward, mode="max-autotune-no-cudagraphs")
    for kind in ("bf16",) if compiled else ("fp32", "bf16"):
        with arithmetic(kind):
            predictor = SAM2ImagePredictor(model)
            few = 1 if QUICK else 20
            encode = timed(lambda: predictor.set_image(image), few, sync=sync)
            click = timed(
                lambda: predictor.predict(np.array([[400, 500]]), np.array([1]), multimask_output=False), few * 5
            )
        result[kind + (" compiled" if compiled else "")] = {"encode": encode, "click": click}


def torch_video(result: Result, size: str, objects: int) -> None:
    """Track the same objects with the official predictor."""
    from triton_sam.export.sam2.video_reference import Sam2VideoReference

    model = official(size)
    frames = clip(11 if QUICK else 48)
    for kind in ("fp32",) if QUICK else ("fp32", "bf16"):
        with arithmetic(kind):
            reference = Sam2VideoReference(model, frames)
            for number, place in enumerate(places(objects)):
                reference.add(0, number + 1, points=[place], labels=[1])
            result[kind] = rate(reference.propagate())


def torch_everything(result: Result, size: str) -> None:
    """Find all objects with the official generator."""
    from triton_sam.export.registry import exporter

    image = np.asarray(Image.open(io.BytesIO(photographs(1, (1024, 1024))[0])))
    model = official(size)
    for kind in ("fp32", "bf16"):
        with arithmetic(kind):
            generate = exporter("sam2").everything_reference(model)
            found: list[int] = []
            act = lambda: found.append(len(generate(image, points_per_side=2 if QUICK else 32)))  # noqa: E731
            result[kind] = timed(act, 1 if QUICK else 3, 1)
        result[kind]["objects"] = found[-1]
