"""`triton-sam serve` in the foreground, and killed processes, which leave nothing behind."""

import io
import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from support.conditions import PATIENCE, wait_until
from support.processes import all_gone, family_of, segments, segments_of

from triton_sam.cli import main
from triton_sam.local_server import LocalServer
from triton_sam.local_server.serve import _follow as follow_log

PARENT = """
import sys, time
from triton_sam.local_server import LocalServer
server = LocalServer(sys.argv[1]).start()
print(server.pid, flush=True)
time.sleep(100)
"""


def start_in_another_program(repository: Path) -> tuple[subprocess.Popen[str], int]:
    program = subprocess.Popen([sys.executable, "-c", PARENT, str(repository)], stdout=subprocess.PIPE, text=True)
    return program, int(program.stdout.readline())


def test_a_killed_program_leaves_no_process_no_segment_and_no_folder(scale_only):
    program, pid = start_in_another_program(scale_only)
    processes, prefix = family_of(pid), segments_of(pid)
    run_directory = Path(processes[2].exe()).parents[2]
    assert any(name.startswith(prefix) for name in segments())
    assert run_directory.is_dir()
    program.kill()
    program.communicate()
    assert all_gone(processes)
    assert not any(name.startswith(prefix) for name in segments())
    assert not run_directory.exists()


@pytest.mark.alone  # any server that starts cleans up
def test_a_killed_supervisor_takes_triton_along_and_the_next_start_cleans_up(scale_only):
    program, pid = start_in_another_program(scale_only)
    processes, prefix = family_of(pid), segments_of(pid)
    run_directory = Path(processes[2].exe()).parents[2]
    assert any(name.startswith(prefix) for name in segments())  # later, a server of another run may remove them
    triton, supervisor, *stubs = processes
    supervisor.kill()
    assert all_gone([triton, supervisor])
    program.kill()
    program.communicate()
    with LocalServer(scale_only) as server:
        assert all_gone(stubs)  # one that waits for the killed Triton does not end before
        wait_until(lambda: not any(name.startswith(prefix) for name in segments()))  # another run may do it
        wait_until(lambda: not run_directory.exists())
        assert server.is_alive()


SERVE = """
import json, sys
from triton_sam.local_server import serve
sys.exit(serve(sys.argv[1], http_port=0, grpc_port=0, metrics_port=0, **json.loads(sys.argv[2])))
"""


def serve_in_foreground(repository: Path, **options: object) -> tuple[subprocess.Popen[str], str, list[psutil.Process]]:
    command = [sys.executable, "-c", SERVE, str(repository), json.dumps(options)]
    program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    summary = ""
    while "Ctrl-C stops it" not in summary:
        line = program.stdout.readline()
        assert line, program.stderr.read()
        summary += line
    return program, summary, psutil.Process(program.pid).children(recursive=True)


def test_serve_stops_once_and_silently(scale_only):
    """By Ctrl-C; SIGTERM ends the servers of the tests below."""
    program, summary, processes = serve_in_foreground(scale_only)
    assert "HTTP     http://127.0.0.1:" in summary
    assert "READY    scale  CPU" in summary
    program.send_signal(signal.SIGINT)
    output, errors = program.communicate(timeout=PATIENCE)
    assert (program.returncode, output, errors) == (0, "Stopped.\n", "")
    assert all_gone(processes, 0)


def test_a_signal_that_a_finalizer_swallows_stops_the_server(scale_only):
    """Python prints an exception in `__del__` and goes on; the signal came there once, and the server stayed."""
    swallow = """
import importlib, os, signal
class Swallows:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        sum(range(1000))  # the handler runs here
importlib.import_module("triton_sam.local_server.serve")._warn_of_unguarded = lambda *_: Swallows() and None
"""
    command = [sys.executable, "-c", swallow + SERVE, str(scale_only), "{}"]
    program = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert program.returncode == 0
    assert "Exception ignored in" in program.stderr
    assert program.stdout.endswith("Stopped.\n")


def test_verbose_leaves_out_what_earlier_servers_wrote(scale_only, tmp_path):
    log = tmp_path / "triton.log"
    log.write_text("of an earlier server\n")
    program, summary, _ = serve_in_foreground(scale_only, verbose=True, log_file=str(log), host="0.0.0.0")
    assert "others   http://" in summary
    assert "warning  Triton has no authentication" in summary
    program.send_signal(signal.SIGTERM)
    _, errors = program.communicate(timeout=PATIENCE)
    assert "successfully loaded 'scale'" in errors
    assert "of an earlier server" not in errors
    assert log.read_text() == "of an earlier server\n" + errors


def test_the_log_that_is_copied_is_that_of_the_last_attempt(tmp_path, monkeypatch):
    said = io.StringIO()  # capsys loses what a thread writes while it is read
    monkeypatch.setattr(sys, "stderr", said)
    first, second = tmp_path / "first.log", tmp_path / "second.log"
    first.write_text("of an earlier server\nport taken\n")
    server, finished = SimpleNamespace(log_place=None), threading.Event()
    thread = threading.Thread(target=follow_log, args=(server, finished))
    thread.start()
    server.log_place = (first, len("of an earlier server\n"))
    wait_until(lambda: "port taken\n" in said.getvalue())
    first.unlink()
    server.log_place = (second, 0)  # the server is about to make the file
    time.sleep(0.15)
    second.write_text("ready\n")
    wait_until(lambda: "ready\n" in said.getvalue())
    with second.open("a") as log:
        log.write("the end\n")
    finished.set()
    thread.join()
    assert said.getvalue() == "port taken\nready\nthe end\n"


def test_a_failed_start_prints_one_line_and_no_stopped_message(tmp_path, capsys):
    assert main(["serve", "--model-repository", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1


def test_serve_goes_on_and_says_so_when_triton_dies(scale_only):
    program, _, processes = serve_in_foreground(scale_only)
    next(process for process in processes if process.name() == "tritonserver").kill()
    line = program.stderr.readline()
    assert line == "triton-sam: tritonserver ended (exit status 137): Triton starts again (restart 1)\n"
    program.send_signal(signal.SIGTERM)
    output, errors = program.communicate(timeout=PATIENCE)
    assert (program.returncode, output, errors) == (0, "Stopped.\n", "")


def test_serve_ends_with_1_when_the_server_dies(scale_only):
    program, _, processes = serve_in_foreground(scale_only, heal=False)
    next(process for process in processes if process.name() == "tritonserver").kill()
    _, errors = program.communicate(timeout=PATIENCE)
    assert program.returncode == 1
    assert "the server stopped" in errors
    assert all_gone(processes, 0)
