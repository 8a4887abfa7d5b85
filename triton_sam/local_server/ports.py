"""Choose the address and the ports that a server listens on."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Mapping
from ipaddress import ip_address

from triton_sam.errors import ConfigurationError, LocalServerError, PortInUseError

ALL_ADDRESSES = "0.0.0.0"  # noqa: S104 - it is compared, not bound


def resolve_host(host: str) -> str:
    """Return the IPv4 address of a host. Triton does not accept host names."""
    try:
        return str(socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
    except (OSError, UnicodeError) as error:
        raise ConfigurationError(
            f"cannot listen on {host!r}: it is neither an IPv4 address nor a known name"
        ) from error


def reachable_host(address: str) -> str:
    """Return the address at which this machine reaches a server that listens on `address`."""
    return "127.0.0.1" if address == ALL_ADDRESSES else address


def hosts_for_others(address: str) -> list[str]:
    """Return the hosts at which other computers reach a server that listens on `address`; none for loopback."""
    if ip_address(address).is_loopback:
        return []
    return list(dict.fromkeys([own_address(), socket.gethostname()])) if address == ALL_ADDRESSES else [address]


def own_address() -> str:
    """Return this machine's address in its network. Nothing is sent: UDP's connect() only chooses a route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        try:
            udp.connect(("192.0.2.1", 9))
        except OSError:
            return socket.gethostname()
        return str(udp.getsockname()[0])


def choose_ports(address: str, wanted: Mapping[str, int]) -> dict[str, int]:
    """Check that the wanted ports are free, and replace every 0 with a free port.

    Args:
        wanted: port by service ("http", "grpc", "metrics"); 0 means any free port. Errors name the command-line
            option of the port, which is --SERVICE-port, or --port if there is only one service.

    Returns:
        Port by service.
    """
    fixed = [port for port in wanted.values() if port]
    if len(set(fixed)) != len(fixed):
        raise ConfigurationError(f"each service needs a port of its own, not {dict(wanted)}")
    chosen = {}
    with contextlib.ExitStack() as stack:
        # Named ports are bound first, so that none of them is chosen as a free one. All stay bound until all are
        # chosen.
        for service, port in sorted(wanted.items(), key=lambda item: not item[1]):
            held = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            option = option_of(service) if len(wanted) > 1 else "--port"
            chosen[service] = _bind(held, address, option, port)
    return {service: chosen[service] for service in wanted}


def _bind(held: socket.socket, address: str, option: str, port: int) -> int:
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Triton does, so that a port in TIME_WAIT is free
    try:
        held.bind((address, port))
        # With SO_REUSEADDR, bind does not detect a conflict: two sockets may share a port until one listens.
        held.listen(1)
    except OverflowError as error:
        raise ConfigurationError(f"{option} must be 0 to 65535, not {port}") from error
    except OSError as error:
        raise _bind_error(error, address, option, port) from error
    return int(held.getsockname()[1])


def _bind_error(error: OSError, address: str, option: str, port: int) -> Exception:
    if error.errno == errno.EADDRINUSE:
        return port_in_use(option, port)
    if error.errno == errno.EACCES:
        return LocalServerError(f"this user may not listen on port {port}: choose another with {option}")
    if error.errno == errno.EADDRNOTAVAIL:
        return ConfigurationError(f"{address} is not an address of this machine: choose another with --host")
    return LocalServerError(f"cannot listen on {address}:{port}: {error.strerror}")


def port_in_use(option: str, port: int) -> PortInUseError:
    """Return the error for a port in use, with the option that sets another port."""
    return PortInUseError(f"another process listens on port {port}: choose another with {option}", port=port)


def option_of(service: str) -> str:
    """Return the command-line option that sets the port of a service."""
    return f"--{service}-port"
