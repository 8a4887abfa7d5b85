"""The hosts at which other computers reach a server."""

import socket

import pytest

from triton_sam.local_server import ports


@pytest.mark.parametrize(
    ("address", "hosts"), [("127.0.0.1", []), ("198.51.100.2", ["198.51.100.2"]), ("0.0.0.0", ["192.0.2.7", "gpu"])]
)
def test_hosts_for_others(address, hosts, monkeypatch):
    monkeypatch.setattr(ports, "own_address", lambda: "192.0.2.7")
    monkeypatch.setattr(socket, "gethostname", lambda: "gpu")
    assert ports.hosts_for_others(address) == hosts


def test_the_own_address_is_one_of_this_machine():
    with socket.socket() as probe:
        probe.bind((ports.own_address(), 0))
