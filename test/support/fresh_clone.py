"""A fresh clone of this checkout, and its scripts that start Triton and request a mask."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image

from triton_sam._common.bundle import bundled

from .conditions import PATIENCE
from .nginx_proxy import free_ports
from .programs import answers, running_program

PORTS = ("HTTP_PORT", "GRPC_PORT", "METRICS_PORT")


def fresh_clone(root: Path, clone: Path) -> Path:
    """Clone a checkout and return the folder of the clone.

    Uncommitted changes of tracked files are copied, so that a test uses the current scripts.
    """
    git = ["git", "clone", "--quiet", "--depth", "1", root.as_uri(), str(clone)]
    subprocess.run(git, check=True, capture_output=True, timeout=120)
    listed = ["git", "diff", "HEAD", "--name-only", "--diff-filter=d", "-z"]
    changed = subprocess.run(listed, cwd=root, check=True, capture_output=True, text=True, timeout=60).stdout
    for name in filter(None, changed.split("\0")):
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, clone / name)
    return clone


@contextmanager
def served(clone: Path, log: Path, variables: Mapping[str, str], seconds: float) -> Iterator[int]:
    """Run scripts/run_triton.sh of a clone, and yield the HTTP port when every model is ready.

    At the end, SIGTERM must end the script and the server. The log has the output of both.
    """
    ports = dict(zip(PORTS, map(str, free_ports(len(PORTS))), strict=True))
    environment = {**os.environ, **ports, **variables}
    url = f"http://127.0.0.1:{ports['HTTP_PORT']}/v2/models/sam2/ready"
    command = ["scripts/run_triton.sh"]
    with running_program(command, log, lambda: answers(url), seconds, cwd=clone, env=environment) as script:
        yield int(ports["HTTP_PORT"])
        script.terminate()
        assert script.wait(PATIENCE) == 0, log.read_text()[-2000:]


def infer_example(clone: Path, port: int) -> Path:
    """Run scripts/infer_example.sh of a clone with its default image and prompt; return the file of the mask."""
    done = subprocess.run(
        ["scripts/infer_example.sh", "localhost", str(port)],
        cwd=clone,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    path = clone / "test" / "output" / "mask.png"
    assert f"written to {path}" in done.stderr
    return path


def check_mask(path: Path) -> None:
    """Check that the file is a mask of the ball in test/images/shapes.jpg, whose centre is at (200, 180)."""
    with Image.open(path) as image, Image.open(bundled("test/images/shapes.jpg")) as picture:
        assert image.size == picture.size
        mask = np.asarray(image.convert("L")) > 0
    assert mask[180, 200]
    assert not mask[:5].any()
    assert 0.01 < mask.mean() < 0.3
