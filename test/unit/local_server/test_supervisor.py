"""The supervisor and its watch of models, with small programs in place of tritonserver."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest

pytest.importorskip("fcntl")
if not sys.platform.startswith("linux"):
    pytest.skip("the local server needs Linux", allow_module_level=True)

from support.conditions import PATIENCE
from support.socket_server import Server, response

from triton_sam.local_server import leftovers, output, stubs, supervisor
from triton_sam.local_server.control import find_closed_server
from triton_sam.local_server.serve import _new_text, _open_at


def job_of(folder, *command, log_file="", grpc_port=0):
    facts = {"ports": {"grpc": grpc_port}}
    address = ["127.0.0.1", 9]
    return supervisor.Job([*command], log_file, str(folder), "triton_sam_test_", 30, 0, address, heal=True, facts=facts)


@pytest.fixture
def triton(monkeypatch):
    """Answers like Triton: a list of models, and their configurations."""
    monkeypatch.setattr(stubs, "SECONDS_TO_ANSWER", PATIENCE)

    def serve(server, connection):
        while request := server.read(connection):
            answer = server.index if request[0].startswith("POST") else server.config
            connection.sendall(response(json.dumps(answer).encode()))

    with Server(serve) as server:
        server.index, server.config = [], {"error": "a key is needed"}
        yield server


def row(name, state="READY", reason=""):
    return {"name": name, "version": "1", "state": state, "reason": reason}


def watch_of(triton, expected=frozenset()):
    return stubs.StubWatch(os.getpid(), ("127.0.0.1", int(triton.url.rpartition(":")[2])), expected)


@pytest.mark.parametrize(
    ("index", "lost"),
    [
        ([row("a"), row("b", "UNAVAILABLE", "out of memory")], "b"),
        ([row("a"), row("b", "UNAVAILABLE", "unloaded")], ""),
        ([row("a"), row("b"), row("new", "UNAVAILABLE", "out of memory")], ""),
        ([row("a")], ""),
        ({"error": "a key is needed"}, ""),
    ],
)
def test_a_model_that_was_ready_must_load_again(triton, index, lost):
    first = watch_of(triton)
    triton.index = [row("a"), row("b"), row("c", "UNAVAILABLE", "never loaded")]
    first.lost_model()
    assert first.is_up
    assert (first.ready, first.unloadable) == ({"a", "b"}, "")
    triton.index = index
    again = watch_of(triton, frozenset(first.ready))
    again.lost_model()
    assert again.unloadable == lost


@pytest.mark.parametrize(("living", "lost"), [(2, ""), (1, ""), (0, "a")])
def test_a_model_of_unknown_size_is_lost_with_its_last_process(triton, monkeypatch, living, lost):
    """An ended process that completed the configuration, or an earlier one, is no reason to expect several."""
    triton.index = [row("a")]
    monkeypatch.setattr(stubs, "find_stubs", lambda _: {stubs.Stub(10**9 + number, "a") for number in range(living)})
    watch = watch_of(triton)
    assert watch._incomplete({"a"}) == lost
    triton.config = {"instance_group": [{"count": 2}]}
    assert watch._incomplete({"a"}) == ("" if living == 2 else "a")


@pytest.mark.parametrize(
    ("config", "living", "lost"),
    [
        ({"backend": "python"}, 0, "a"),
        ({"backend": "onnxruntime", "runtime": "model.py"}, 0, "a"),
        ({"backend": "onnxruntime", "runtime": "model.py"}, 1, ""),
        ({"backend": "onnxruntime", "runtime": "libtriton_onnxruntime.so"}, 0, ""),
        ({"platform": "ensemble"}, 0, ""),
        ({"error": "a key is needed"}, 0, ""),
    ],
)
def test_a_model_whose_process_died_before_it_was_seen_is_lost(triton, monkeypatch, config, living, lost):
    triton.index, triton.config = [row("a")], config
    monkeypatch.setattr(stubs, "SECONDS_BETWEEN_LOOKS", 0.0)
    monkeypatch.setattr(stubs, "SECONDS_TO_CONFIRM", 0.0)
    watch = watch_of(triton)
    watch.lost_model()
    assert watch.is_up
    monkeypatch.setattr(stubs, "find_stubs", lambda _: {stubs.Stub(10**9 + number, "a") for number in range(living)})
    assert [watch.lost_model(), watch.lost_model()] == ["", lost]


class Machine:
    """Runs supervise() with runs of tritonserver that are given."""

    def __init__(self, folder, monkeypatch, runs):
        self.expected = []
        self.pauses = []
        self.states = []
        self.folder = folder
        self._runs = iter(runs)
        monkeypatch.setattr(supervisor, "run_once", self._run_once)
        monkeypatch.setattr(supervisor, "must_stop_within", self._pause)
        self.status = supervisor.supervise(job_of(folder), ctypes.CDLL(None), 0, output.Output("absent"))

    def _run_once(self, *arguments):
        self.expected.append(arguments[-1])
        return next(self._runs)

    def _pause(self, seconds, *_):
        self.pauses.append(seconds)
        self.states.append(json.loads((self.folder / supervisor.STATE_FILE).read_text())["restarts"])
        return False


UP = supervisor.Run(5, "a model is gone", 0, seconds_up=1000, was_up=True, ready=frozenset({"a"}))
NOT_RUN = supervisor.Run(0, "cannot run triton: Cannot allocate memory", 127)
STOPPED = supervisor.Run(5, supervisor.STOP, 0)


def test_a_program_that_cannot_be_run_for_a_while_is_tried_again(tmp_path, monkeypatch):
    machine = Machine(tmp_path, monkeypatch, [UP, NOT_RUN, NOT_RUN, UP, STOPPED])
    assert machine.status == 0
    assert machine.pauses == [0, 1, 2, 0]
    assert machine.states == [1, 2, 3, 4]  # known before the pause
    assert Machine(tmp_path, monkeypatch, [NOT_RUN]).status == 127


def test_models_of_the_first_run_are_expected_until_a_reload(tmp_path, monkeypatch):
    reloaded = supervisor.Run(5, supervisor.RELOAD, 0, seconds_up=1, was_up=True, ready=frozenset({"b"}))
    machine = Machine(tmp_path, monkeypatch, [UP, reloaded, UP, STOPPED])
    assert machine.expected == [frozenset(), {"a"}, frozenset(), {"a"}]


def test_an_order_to_stop_is_seen_without_a_pause(tmp_path):
    reader, writer = os.pipe()
    os.write(writer, bytes([signal.SIGTERM]))
    job = job_of(tmp_path)
    assert supervisor.must_stop_within(0.0, job, reader, output.Output("log"))
    assert not supervisor.must_stop_within(0.0, job, reader, output.Output("log"))
    os.close(reader)
    os.close(writer)


def test_a_port_has_clients_while_they_are_connected():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert not supervisor.has_clients(port)
        with socket.create_connection(("127.0.0.1", port)):
            connection, _ = server.accept()
            assert supervisor.has_clients(port)
        with connection:
            assert not connection.recv(1)
            assert not supervisor.has_clients(port)


def test_a_flood_of_output_does_not_hold_up_the_supervisor(capfd, monkeypatch):
    endless = output.Output("")
    monkeypatch.setattr(output.os, "read", lambda *_: b"x" * 10)
    endless.copy()
    assert capfd.readouterr().err == "x" * 10 * output.MOST_READS
    for descriptor in (endless.pipe, endless.writer):
        os.close(descriptor or 0)


def test_short_writes_go_on(monkeypatch):
    taken = []
    monkeypatch.setattr(output.os, "write", lambda _, content: taken.append(bytes(content[:3])) or len(taken[-1]))
    output.write_all(2, b"abcdefgh")
    assert taken == [b"abc", b"def", b"gh"]


def test_a_log_that_nobody_reads_ends_nothing(monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    broken = os.fdopen(writer, "w")
    monkeypatch.setattr(output.sys, "stderr", broken)
    output.log("a line")
    with contextlib.suppress(OSError):
        broken.close()


@pytest.mark.parametrize("is_own", [True, False])
def test_a_long_log_of_its_own_is_emptied_and_read_on(tmp_path, monkeypatch, is_own):
    monkeypatch.setattr(output, "MOST_BYTES_OF_OWN_LOG", 100)
    path = tmp_path / "log"
    path.write_text("old\n" * 100)
    with _open_at(path, 0) as log:
        assert _new_text(log) == "old\n" * 100
        output.Output(str(path), is_own=is_own).limit()
        with path.open("a") as more:
            more.write("new\n")
        assert _new_text(log) == "new\n"
    assert path.read_text() == ("new\n" if is_own else "old\n" * 100 + "new\n")


def test_the_scratch_folder_of_each_run_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(leftovers, "SCRATCH", tmp_path)
    monkeypatch.setattr(leftovers, "SECONDS_TO_LOAD_BACKEND", PATIENCE)
    folder = tmp_path / "python_env_x"
    log = tmp_path / "log"
    log.touch()
    job = job_of(tmp_path, "sh", "-c", f"mkdir {folder}; touch -d now {folder}")  # the clock of mkdir lags behind
    reader, writer = os.pipe()
    run = supervisor.run_once(job, ctypes.CDLL(None), reader, output.Output(str(log)), 0, frozenset())
    os.close(reader)
    os.close(writer)
    assert (run.reason, run.status, run.was_up) == (supervisor.ENDED, 0, False)
    assert not folder.exists()


def test_a_server_whose_lock_nobody_holds_gets_no_signal(tmp_path, monkeypatch):
    """Its process id may belong to another program by now."""
    monkeypatch.setattr("triton_sam.local_server.control.SHARED_MEMORY", tmp_path)
    monkeypatch.setattr(leftovers, "SHARED_MEMORY", tmp_path)
    state = {"ports": {"http": 8000}, "links": "links", "supervisor": os.getpid()}
    (tmp_path / supervisor.STATE_FILE).write_text(json.dumps(state))
    lock = leftovers.hold_lock("triton_sam_x_", str(tmp_path), time.time())
    assert lock is not None
    found = find_closed_server(8000)
    assert found is not None
    assert found.run_directory == tmp_path
    os.close(lock)
    assert find_closed_server(8000) is None


def test_a_lock_of_a_start_that_ended_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(leftovers, "SHARED_MEMORY", tmp_path)
    empty = tmp_path / "triton_sam_a_lock"
    empty.touch()
    held = leftovers.hold_lock("triton_sam_b_", str(tmp_path / "run"), time.time())
    assert held is not None
    leftovers.remove_stale_servers()
    assert [path.name for path in tmp_path.iterdir()] == ["triton_sam_b_lock"]
    os.close(held)
    monkeypatch.setattr(os, "write", no_space)
    assert leftovers.hold_lock("triton_sam_c_", str(tmp_path / "run"), time.time()) is None
    assert not (tmp_path / "triton_sam_c_lock").exists()


def test_processes_of_models_that_outlived_their_server_are_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(leftovers, "SHARED_MEMORY", tmp_path)
    run = tmp_path / "run"
    run.mkdir()
    program = shutil.copy(shutil.which("sleep"), run / "sleep")
    of_a_model, other = subprocess.Popen([program, "600"]), subprocess.Popen(["sleep", "600"])
    try:
        os.close(leftovers.hold_lock("triton_sam_a_", str(run), time.time()))
        leftovers.remove_stale_servers()
        assert of_a_model.wait(PATIENCE) == -signal.SIGKILL
        assert other.poll() is None
    finally:
        of_a_model.kill()
        other.kill()
        of_a_model.wait()
        other.wait()
    assert not run.exists()


def no_space(*_):
    raise OSError(28, "No space left on device")
