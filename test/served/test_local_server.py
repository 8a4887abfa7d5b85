"""The local server with the real Triton: it starts, stops, reports failures and leaves nothing behind."""

import importlib.metadata
import os
import shutil
import socket
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from support.conditions import PATIENCE, wait_until
from support.processes import all_gone, family_of, segments_of_log
from support.tiny_models import ENSEMBLE, add_graph, config_of, write_model

from triton_sam.errors import (
    ConfigurationError,
    LocalServerError,
    PortInUseError,
    RepositoryError,
)
from triton_sam.local_server import LocalServer, installation, process, supervisor
from triton_sam.local_server.probe import last_errors, tidy_reason
from triton_sam.repository import selection
from triton_sam.transport import Transport
from triton_sam.transport.url import parse_url

# --- choosing models


def test_models_that_call_an_unloadable_model_are_unloadable(tmp_path):
    """An alias of an alias of a model without weights is left out, in any order of the names."""
    for name, target in (("a", "b"), ("b", "c"), ("z", "b")):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "config.pbtxt").write_text(ENSEMBLE.replace('"scale"', f'"{target}"'))
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "config.pbtxt").write_text(config_of())
    write_model(tmp_path, "add", add_graph(), config_of())
    assert [model.name for model in selection.select_models(tmp_path, None)] == ["add"]


def test_a_model_whose_newest_version_is_empty_is_left_out(tmp_path):
    for name in ("add", "other"):
        write_model(tmp_path, name, b"x", config_of())
    (tmp_path / "other" / "2").mkdir()
    assert [model.name for model in selection.select_models(tmp_path, None)] == ["add"]
    with pytest.raises(RepositoryError, match=r"'other' has no weights \(expected .*/other/2/model\.onnx\)"):
        selection.select_models(tmp_path, ["other"])


def test_unknown_and_weightless_models_are_refused_with_advice(tmp_path):
    (tmp_path / "sam2_decoder").mkdir()
    (tmp_path / "sam2_decoder" / "config.pbtxt").write_text(config_of())
    with pytest.raises(RepositoryError, match=r"no model 'sam3' in .* \(available: sam2_decoder\)"):
        LocalServer(tmp_path, models=["sam3"]).start()
    with pytest.raises(RepositoryError, match=r"'sam2_decoder' has no weights \(expected .*triton-sam export sam2"):
        LocalServer(tmp_path, models=["sam2_decoder"]).start()
    with pytest.raises(RepositoryError, match=r"no model in .* has weights.*triton-sam export sam2"):
        LocalServer(tmp_path).start()
    (tmp_path / "empty").mkdir()
    with pytest.raises(RepositoryError, match=r"\(available: none\): write them with `triton-sam setup sam2`"):
        LocalServer(tmp_path / "empty").start()
    with pytest.raises(RepositoryError, match="no model repository at"):
        LocalServer(tmp_path / "nowhere").start()
    with pytest.raises(ConfigurationError, match="must be a list of names"):
        LocalServer(tmp_path, models="sam2_decoder")


# --- starting and stopping


def test_a_broken_file_is_reported_with_its_reason_and_leaves_nothing(scale_only):
    broken = write_model(scale_only, "broken", b"not a model", config_of())
    server = LocalServer(scale_only)
    with pytest.raises(
        LocalServerError, match=r"'broken' failed to load: .*broken/1/model\.onnx.*(?i:protobuf)"
    ) as caught:
        server.start()
    assert str(broken) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "'scale'" not in str(caught.value)
    assert not server.is_alive()
    assert not psutil.pid_exists(server.pid or 0)
    assert not segments_of_log(server.log)


@pytest.mark.parametrize("admin", [False, True])
def test_a_config_that_cannot_be_parsed_is_named_and_quoted(scale_only, admin):
    """The command prints the text of the error: see cli.main()."""
    path = write_model(scale_only, "broken", b"unread", config_of()).parents[1] / "config.pbtxt"
    path.write_text(f"{path.read_text()}max_batch_size: zero\n")
    line = len(path.read_text().splitlines())
    with pytest.raises(LocalServerError) as caught:
        LocalServer(scale_only, admin=admin).start()
    reason = f"{path}, line {line}: Expected integer, got: zero in `max_batch_size: zero`"
    assert str(caught.value) == f"model 'broken' failed to load: {reason}"


def test_start_stop_and_start_again(scale_only, tmp_path):
    server = LocalServer(scale_only, log_file=tmp_path / "logs" / "triton.log")
    with pytest.raises(LocalServerError, match="was not started"):
        server.http_url  # noqa: B018
    for _ in range(2):
        with server:
            assert server.is_alive()
            assert server.server_version().startswith("2.")
            processes = family_of(server.pid)
            assert len(processes) == 3
            assert server.wait(0.01) is None
            with pytest.raises(LocalServerError, match="runs already"):
                server.start()
        assert not server.is_alive()
        assert all_gone(processes, 0)
        server.stop()
    assert not segments_of_log(server.log)
    assert "successfully loaded 'scale'" in server.log
    assert (tmp_path / "logs" / "triton.log").read_text().count("successfully loaded 'scale'") == 2


def test_ctrl_c_at_any_moment_of_waiting_leaves_a_server_that_can_be_stopped(scale_only):
    """It once came between the two instructions with which Python's Popen takes and releases a lock."""
    server = LocalServer(scale_only).start()
    processes = family_of(server.pid)
    calls = 0
    while calls is not None:
        calls = _wait_with_ctrl_c(server, after_calls=calls + 1)
    stopping = threading.Thread(target=server.stop, daemon=True)  # an error of stop() leaves it to atexit
    stopping.start()
    stopping.join(PATIENCE)
    assert not stopping.is_alive()
    assert all_gone(processes, 0)


def _wait_with_ctrl_c(server: LocalServer, after_calls: int) -> int | None:
    """Wait a moment for a server, with Ctrl-C at the end of a call of C; return None if fewer calls are made."""
    left = after_calls

    def profile(_frame: object, event: str, _call: object) -> None:
        nonlocal left
        left -= event == "c_return"
        if left == 0:
            sys.setprofile(None)
            raise KeyboardInterrupt

    sys.setprofile(profile)
    try:
        assert server.wait(0.01) is None
    except KeyboardInterrupt:
        return after_calls
    finally:
        sys.setprofile(None)
    return None


def test_a_taken_port_is_named_with_its_option(scale_only):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for service in ("http", "grpc", "metrics"):
            with pytest.raises(PortInUseError, match=f"listens on port {port}: choose another with --{service}-port"):
                LocalServer(scale_only, **{f"{service}_port": port}).start()


def test_invalid_ports_and_hosts_are_refused(scale_only):
    with pytest.raises(ConfigurationError, match="port of its own"):
        LocalServer(scale_only, http_port=18000, grpc_port=18000).start()
    with pytest.raises(ConfigurationError, match="0 to 65535"):
        LocalServer(scale_only, http_port=70000).start()
    with pytest.raises(ConfigurationError, match="cannot listen on"):
        LocalServer(scale_only, host="no-such-host.invalid").start()
    with pytest.raises(ConfigurationError, match="not an address of this machine"):
        LocalServer(scale_only, host="192.0.2.1").start()


def test_tritonserver_that_refuses_its_arguments_is_quoted(scale_only):
    with pytest.raises(LocalServerError, match=r"ended while it started .*no-such-flag"):
        LocalServer(scale_only, extra_args=["--no-such-flag"]).start()


def test_a_start_that_takes_too_long_is_given_up(scale_only):
    server = LocalServer(scale_only, startup_timeout=0.01)
    with pytest.raises(LocalServerError, match=r"not ready after 0\.01 s"):
        server.start()
    assert not server.is_alive()


# Python 3.12 advises against this in a process with threads; a caller may do it all the same.
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_server_outlives_the_thread_that_started_it_and_a_forked_child(scale_only, monkeypatch):
    monkeypatch.delenv("MALLOC_ARENA_MAX", raising=False)
    server = LocalServer(scale_only, stop_timeout=1.4)
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
    child = os.fork()
    if child == 0:
        server.stop()
        os._exit(0)
    os.waitpid(child, 0)
    time.sleep(0.6)
    assert server.is_alive()
    assert server.log_path.exists()
    assert "--exit-timeout-secs=2" in psutil.Process(server.pid).cmdline()
    assert psutil.Process(server.pid).environ()["MALLOC_ARENA_MAX"] == "2"  # less memory for session models
    server.stop()


def test_two_threads_that_stop_a_server_close_its_pipe_once(scale_only, monkeypatch):
    """A descriptor that is closed twice may by then belong to a file that a third thread has opened."""
    closed, close, server = [], os.close, LocalServer(scale_only)

    def watched_close(descriptor: int) -> None:
        closed.append(descriptor)
        if len(closed) == 1:  # another thread stops the server before this one has closed the descriptor
            other = threading.Thread(target=server._run._close_lifeline)
            other.start()
            other.join()
            monkeypatch.undo()
        close(descriptor)

    with server:
        monkeypatch.setattr(process.os, "close", watched_close)
        server.stop()
    assert len(closed) == 1
    assert not server.is_alive()


# --- choosing an installation of Triton


def test_an_unsupported_numpy_is_an_error_with_the_way_out(monkeypatch):
    """test/unit/test_platforms.py has the platforms, the versions of Python, and the missing wheel."""
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.1.0")
    with pytest.raises(LocalServerError, match=r"numpy 2\.1\.0: pip install .*\[local\]"):
        installation.find_wheel()


def test_another_installation_with_its_own_backends(scale_only, tmp_path, monkeypatch):
    wheel, elsewhere = installation.find_wheel(), tmp_path / "tritonserver"
    (elsewhere / "bin").mkdir(parents=True)
    shutil.copy(wheel / "tritonserver" / "bin" / "tritonserver", elsewhere / "bin")
    (elsewhere / "lib").symlink_to(wheel.parent / "nvidia_pytriton.libs")
    installation._assemble_backends(wheel / "tritonserver", elsewhere / "backends")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(installation.find_libpython().parent))
    with LocalServer(scale_only, tritonserver=elsewhere) as server:
        assert Path(psutil.Process(server.pid).exe()) == elsewhere / "bin" / "tritonserver"
        assert [model.name for model in server.served_models()] == ["scale"]
    with pytest.raises(ConfigurationError, match="no Triton at"):
        LocalServer(scale_only, tritonserver=tmp_path / "nowhere").start()
    with pytest.raises(ConfigurationError, match="no such backend directory"):
        LocalServer(scale_only, backend_directory=tmp_path / "nowhere").start()


# --- reading Triton's log


def test_reasons_lose_wrapping_and_traceback():
    raw = "Internal: TritonModelException: no such\nfile\n\nAt:\n  /a/model.py(9): initialize\n"
    assert tidy_reason(raw) == "no such file"


def test_errors_of_a_log_come_before_everything_else():
    log = (
        'I1121 05:31:35.1 1 a.cc:1] "fine"\n'
        'E1121 05:31:35.1 1 server.cc:241] "CudaDriverHelper has not been initialized."\n'
        'E1121 05:31:35.1 1 main.cc:2] "the disk is full"\nusage text\n'
    )
    assert last_errors(log) == ["the disk is full"]


def test_a_killed_model_is_there_again_on_the_same_ports(scale_only):
    """The client repeats its call meanwhile. Shared memory of the killed processes is removed."""
    ones = np.ones((1, 2), np.float32)
    with LocalServer(scale_only) as server:
        transport = Transport(parse_url(server.http_url), timeout=PATIENCE, retries=60)
        expected = transport.infer("scale", {"x": ones}, ["y"])["y"]
        pid, old = server.pid, segments_of_log(server.log)
        psutil.Process(server.pid).children()[0].kill()
        np.testing.assert_array_equal(transport.infer("scale", {"x": ones}, ["y"])["y"], expected)
        transport.close()
        wait_until(lambda: server.pid != pid)
        assert server.restarts == 1
        assert "the process of model scale is gone" in server.log
        lock = {name for name in old if name.endswith("lock")}
        assert segments_of_log(server.log) & old == lock
    assert segments_of_log(server.log) == set()


def test_restarts_come_later_each_time_and_end():
    restarts = supervisor.Restarts()
    assert [restarts.next_pause(10) for _ in range(6)] == [0, 1, 2, 4, 8, None]
    assert restarts.count == 5
    restarts = supervisor.Restarts()
    assert [restarts.next_pause(seconds) for seconds in (10, 10, 1000, 10)] == [0, 1, 0, 1]
