"""The wall clock jumps in the middle of calls, as time synchronisation or a person makes it: timeouts do not notice.

Run as a program, this file is the process whose clock jumps: it prints how long each of its calls took.
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
from support.busy_machine import standstill

TIMEOUT, JUMP_AFTER = 2.0, 0.5


@pytest.fixture(scope="module")
def preload(tmp_path_factory):
    """A library that moves the wall clock of the process that it is loaded into."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    library = tmp_path_factory.mktemp("clock") / "wall_clock.so"
    source = Path(__file__).parents[1] / "support" / "wall_clock.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return library


@pytest.mark.parametrize("jump", [3600, pytest.param(-3600, marks=pytest.mark.slow)])
def test_timeouts_hold_when_the_wall_clock_jumps(preload, jump):
    tests = Path(__file__).parents[1]  # where the support code is imported from
    environment = {**os.environ, "LD_PRELOAD": str(preload), "PYTHONPATH": os.pathsep.join([str(tests), *sys.path])}
    command = [sys.executable, __file__, str(jump)]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert found.returncode == 0, found.stderr
    seconds = json.loads(found.stdout.splitlines()[-1])
    print(f"\nwall clock {jump:+} s after {JUMP_AFTER} s, timeout {TIMEOUT} s: {seconds}")
    assert seconds.pop("jumped") == pytest.approx(jump, abs=1)
    lost = seconds.pop("lost to others")
    assert len(seconds) == 4
    for took in seconds.values():
        assert TIMEOUT - 0.1 < took < TIMEOUT + 1.5 + lost


def main(jump):
    """Ask a silent server, over each protocol and with each client, and let the clock jump meanwhile."""
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
        ahead = time.time() - time.monotonic()
        with standstill() as lost, ThreadPoolExecutor(len(calls)) as pool:
            jobs = {name: pool.submit(timed, call) for name, call in calls.items()}
            time.sleep(JUMP_AFTER)
            ctypes.c_int.in_dll(ctypes.CDLL(os.environ["LD_PRELOAD"]), "wall_clock_jump").value = jump
            seconds = {name: job.result() for name, job in jobs.items()}
        figures = {**seconds, "jumped": time.time() - time.monotonic() - ahead, "lost to others": lost[0]}
        print(json.dumps({name: round(figure, 2) for name, figure in figures.items()}), flush=True)
        for client in clients.values():
            client.close()


def timed(call):
    from triton_sam.errors import ServerTimeoutError

    began = time.monotonic()
    with contextlib.suppress(ServerTimeoutError):
        call()
    return time.monotonic() - began


if __name__ == "__main__":
    main(int(sys.argv[1]))
