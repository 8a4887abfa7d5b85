"""Measure serving on a GPU, each figure beside PyTorch's on the same card.

`measure.py run --out DIR` starts the servers and runs each step in a process of its own. A step that reaches its time
limit or fails keeps the figures that it has by then. `measure.py table DIR` prints the results.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import steps


def serve(backend: str, size: str) -> None:
    """Serve all models of a size until standard input ends; write the URLs to a file."""
    from triton_sam.local_server import LocalServer

    repository = steps.REPOSITORY
    wanted = [folder.name for folder in sorted(repository.glob(f"{size}_*"))]
    if backend == "cpu-session":
        repository = steps.ROOT / "repository-cpu-session"
        for name in wanted:
            (repository / name).mkdir(parents=True, exist_ok=True)
            for part in (steps.REPOSITORY / name).iterdir():
                target = repository / name / part.name
                if part.name != "config.pbtxt":
                    target.unlink(missing_ok=True)
                    target.symlink_to(part)
                else:
                    text = part.read_text()
                    target.write_text(text.replace("KIND_AUTO", "KIND_CPU") if 'backend: "python"' in text else text)
    folder = steps.ROOT / "backends"
    if backend == "python" or steps.MAIN == "python":
        folder = None
    place = steps.ROOT / f"server-{backend}-{size}.json"
    place.unlink(missing_ok=True)
    began = time.perf_counter()
    log = Path(os.environ["GPU_OUT"]) / f"server-{backend}-{size}.log"
    with LocalServer(repository, models=wanted, backend_directory=folder, log_file=log, startup_timeout=180) as server:
        devices = {model.name: f"{model.name} on {model.device}" for model in server.served_models()}
        found = {
            "http": server.http_url,
            "grpc": server.grpc_url,
            "start": time.perf_counter() - began,
            "devices": devices,
        }
        place.with_suffix(".part").write_text(json.dumps(found))
        place.with_suffix(".part").rename(place)
        sys.stdin.read()


SAVING = threading.Lock()
STEPS: dict[str, tuple[float, Callable[..., None], tuple[Any, ...]]] = {}


def plan(sizes: list[str]) -> None:
    """Fill the table of steps, most important first."""
    first, last = sizes[0], sizes[-1]
    for size in sizes:
        STEPS[f"clicks {size}"] = (45, steps.clicks, (steps.MAIN, size))
    for size in sizes:
        STEPS[f"torch image {size}"] = (40, steps.torch_image, (size,))
        STEPS[f"video {size}, 1"] = (40, steps.video, (size, 1))
        STEPS[f"torch video {size}, 1"] = (40, steps.torch_video, (size, 1))
    for size in sizes:
        STEPS[f"exactness {size}"] = (45, steps.exactness, (size,))
        STEPS[f"provider {size}"] = (40, steps.provider, (size,))
    for size in (first, last) if first != last else (first,):
        STEPS[f"everything {size}"] = (45, steps.everything, (size,))
        STEPS[f"torch everything {size}"] = (45, steps.torch_everything, (size,))
        STEPS[f"16 users {size}"] = (45, steps.crowd, (size,))
        STEPS[f"video {size}, {steps.MANY}"] = (60, steps.video, (size, steps.MANY))
        STEPS[f"torch video {size}, {steps.MANY}"] = (60, steps.torch_video, (size, steps.MANY))
    STEPS[f"embeddings on the CPU {first}"] = (40, steps.clicks, ("cpu-session", first, ("grpc",)))
    if steps.MAIN != "python":
        STEPS[f"Python-based backend {first}"] = (40, steps.clicks, ("python", first, ("grpc",)))
    if not steps.QUICK:
        STEPS[f"torch compiled {last}"] = (100, steps.torch_image, (last, True))


def run(out: Path, sizes: list[str], seconds: float) -> None:
    """Write the models, start the servers, run all steps, stop the servers."""
    end = time.monotonic() + seconds
    os.environ["GPU_OUT"] = str(out.absolute())
    out.mkdir(parents=True, exist_ok=True)
    if not steps.QUICK:
        machine = subprocess.run(["nvidia-smi"], check=False, capture_output=True, text=True).stdout
        (out / "machine.txt").write_text(machine + (steps.ROOT / "project" / "COMMIT").read_text())
    print(f"backend of ONNX models: {steps.MAIN}", flush=True)
    me = [sys.executable, __file__]
    options = ["--sizes", *sizes, "--out", str(out)]
    writing = {size: subprocess.Popen([*me, "step", f"models {size}", *options]) for size in sizes}
    servers = {}
    for size in sizes:
        writing[size].wait()
        for backend in dict.fromkeys((steps.MAIN, "cpu-session", "python") if size == sizes[0] else (steps.MAIN,)):
            log = (out / f"serve-{backend}-{size}.txt").open("w")
            command = [*me, "serve", backend, size]
            servers[f"{backend}-{size}"] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log)
    try:
        wait_for(servers)
        for name in STEPS:
            left = end - time.monotonic()
            if left < 10:
                print(f"no time left for: {name}", flush=True)
                continue
            began = time.monotonic()
            # A step ends itself at its limit, unless it hangs in a library.
            most = min(left, limit_of(name) + 10)
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run([*me, "step", name, *options], check=False, timeout=most)
            print(f"{name}: {time.monotonic() - began:.1f} s", flush=True)
        if not steps.QUICK:
            by_process = ["nvidia-smi", "--query-compute-apps=pid,name,used_memory", "--format=csv"]
            found = subprocess.run(by_process, check=False, capture_output=True, text=True)
            (out / "memory.txt").write_text(found.stdout)
    finally:
        for server in servers.values():
            server.stdin.close()
        for server in servers.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(20)
            server.kill()


def wait_for(servers: dict[str, subprocess.Popen[bytes]], seconds: float = 100) -> None:
    """Wait until every server is ready or has ended, so that no start disturbs a measurement."""
    deadline = time.monotonic() + seconds
    waiting = dict(servers)
    while waiting and time.monotonic() < deadline:
        for name, process in list(waiting.items()):
            place = steps.ROOT / f"server-{name}.json"
            if place.exists():
                found = json.loads(place.read_text())
                devices = {text for model, text in found["devices"].items() if model.endswith("_encoder")}
                print(f"server {name} started in {found['start']:.1f} s: {', '.join(sorted(devices))}", flush=True)
                del waiting[name]
            elif process.poll() is not None:
                print(f"server {name} ENDED", flush=True)
                del waiting[name]
        time.sleep(0.2)
    for name in waiting:
        print(f"server {name} IS NOT READY after {seconds:.0f} s", flush=True)


def limit_of(name: str) -> float:
    """Return the time limit of a step in seconds; a CPU gets more time."""
    limit = STEPS[name][0] if name in STEPS else 120
    return limit * (4 if steps.QUICK else 1)


def step(name: str, out: Path) -> None:
    """Run one step. Write its figures every second, and when it ends, fails or reaches its time limit."""
    _, function, arguments = STEPS.get(name) or (0, steps.models, (name.removeprefix("models "),))
    result: steps.Result = {}
    target = out / (name.replace(" ", "_").replace(",", "") + ".json")
    threading.Thread(target=save_regularly, args=(target, name, result), daemon=True).start()
    signal.signal(signal.SIGALRM, out_of_time)
    signal.alarm(int(limit_of(name)))
    try:
        function(result, *arguments)
    except Exception as error:  # noqa: BLE001 - figures before a failure are valid
        result["error"] = traceback.format_exc()
        print(f"{name} FAILED: {error}", flush=True)
    signal.alarm(0)
    save(target, name, result)


def save_regularly(target: Path, name: str, result: steps.Result) -> None:
    """Write the figures of a step every second, because a step that hangs in a library is killed."""
    while True:
        time.sleep(1)
        with contextlib.suppress(RuntimeError):  # the step changed the figures meanwhile
            save(target, name, result)


def save(target: Path, name: str, result: steps.Result) -> None:
    """Write the figures of a step."""
    with SAVING:
        text = json.dumps({"step": name, "result": result})
        target.with_suffix(".part").write_text(text)
        target.with_suffix(".part").rename(target)


def out_of_time(*_: object) -> None:
    raise TimeoutError("the time limit of the step is reached")


def table(out: Path) -> None:
    """Print every result with one line per figure."""
    for file in sorted(out.glob("*.json"), key=lambda file: file.stat().st_mtime):
        content = json.loads(file.read_text())
        if not isinstance(content, dict) or "step" not in content:
            continue
        for line in lines(content["result"]):
            print(f"{content['step']:46} {line}")


def lines(result: Any, prefix: str = "") -> Iterator[str]:
    if isinstance(result, dict) and "p50" in result:
        more = "".join(f", {key} {value:.1f}" for key, value in result.items() if key not in ("p50", "p95", "n"))
        yield f"{prefix}p50 {result['p50']:.2f} ms, p95 {result['p95']:.2f} ms, n {result['n']}{more}"
    elif isinstance(result, dict):
        for key, value in result.items():
            yield from lines(value, f"{prefix}{key}: ")
    else:
        yield prefix + str(result).strip()[-300:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=("run", "step", "serve", "table"))
    parser.add_argument("words", nargs="*")
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--sizes", nargs="+", default=["micro", "tiny", "base_plus"])
    parser.add_argument("--seconds", type=float, default=470)
    arguments = parser.parse_args()
    plan(arguments.sizes)
    if arguments.action == "run":
        run(arguments.out, arguments.sizes, arguments.seconds)
        table(arguments.out)
    elif arguments.action == "step":
        step(arguments.words[0], arguments.out)
    elif arguments.action == "serve":
        serve(*arguments.words)
    else:
        table(Path(arguments.words[0]))


if __name__ == "__main__":
    main()
