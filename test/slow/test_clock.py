"""Timeouts hold although the wall clock jumps during a call, as it does when it is synchronised or set by hand.

The test runs this file as a program in a process whose clock jumps. The program prints how long each call took.
"""

import contextlib
import ctypes
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.commands import with_support

TIMEOUT, JUMP_AFTER = 2.0, 0.5


@pytest.fixture(scope="module")
def preload(tmp_path_factory):
    """The path of a library that changes the wall clock of the process that loads it."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    library = tmp_path_factory.mktemp("clock") / "wall_clock.so"
    source = Path(__file__).parents[1] / "support" / "wall_clock.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return library


@pytest.mark.alone
@pytest.mark.parametrize("jump", [3600, pytest.param(-3600, marks=pytest.mark.slow)])
def test_timeouts_hold_when_the_wall_clock_jumps(preload, jump):
    environment = with_support(LD_PRELOAD=str(preload))
    command = [sys.executable, __file__, str(jump)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    seconds = json.loads(done.stdout.splitlines()[-1])
    print(f"\nwall clock {jump:+} s after {JUMP_AFTER} s, timeout {TIMEOUT} s: {seconds}")
    assert seconds.pop("jumped") == pytest.approx(jump, abs=1)
    assert len(seconds) == 4
    for duration in seconds.values():
        assert TIMEOUT - 0.1 < duration < TIMEOUT + 60


def main(jump):
    """Call a server that never answers, with each client over each protocol, and let the clock jump meanwhile."""
    from triton_sam import SAM2TritonClient, SpeculativeSAM2Client

    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        options = {"timeout": TIMEOUT, "retries": 0, "embeddings": "server"}
        clients = {
            f"{kind.__name__}, {scheme}": kind(f"{scheme}://{address}", **options)
            for kind in (SAM2TritonClient, SpeculativeSAM2Client)
            for scheme in ("http", "grpc")
        }
        calls = {name: lambda client=client: client.set_image(b"x") for name, client in clients.items()}
        offset_before = time.time() - time.monotonic()
        with ThreadPoolExecutor(len(calls)) as pool:
            jobs = {name: pool.submit(timed, call) for name, call in calls.items()}
            time.sleep(JUMP_AFTER)
            ctypes.c_int.in_dll(ctypes.CDLL(os.environ["LD_PRELOAD"]), "wall_clock_jump").value = jump
            seconds = {name: job.result() for name, job in jobs.items()}
        results = {**seconds, "jumped": time.time() - time.monotonic() - offset_before}
        print(json.dumps({name: round(value, 2) for name, value in results.items()}), flush=True)
        for client in clients.values():
            client.close()


def timed(call):
    """Return the duration in seconds of a call that may time out."""
    from triton_sam.errors import ServerTimeoutError

    began = time.monotonic()
    with contextlib.suppress(ServerTimeoutError):
        call()
    return time.monotonic() - began


if __name__ == "__main__":
    main(int(sys.argv[1]))
