"""Ask a Triton server whether every model that it has loaded still works; exit with 1 if one does not.

This is the health check of the containers. When the process of a Python model has ended, `/v2/models/NAME/ready` says
so from release 25.12 on, and `/v2/health/ready` from 26.04 on. Older servers go on saying that they are ready. The
script needs the standard library alone, and it never uses a proxy, because the server is in the same container.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import urllib.parse


def status(host: str, port: int, method: str, path: str, timeout: float) -> tuple[int, bytes]:
    """Send one request and return the status and the body of the response."""
    connection = http.client.HTTPConnection(host, port, timeout=timeout)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def fault(host: str, port: int, timeout: float = 4.0, live: bool = False) -> str | None:
    """Return why a server is unhealthy; None if it is healthy.

    Args:
        host: name or address of the server.
        port: its HTTP port.
        timeout: seconds for each request.
        live: check liveness instead of readiness. A server that reloads a model, or failed to load a model, is not
            ready, but a restart would not help.

    Raises:
        OSError, http.client.HTTPException: the server does not answer.
    """
    question = "/v2/health/live" if live else "/v2/health/ready"
    if status(host, port, "GET", question, timeout)[0] != 200:
        return f"{question} says no"
    code, body = status(host, port, "POST", "/v2/repository/index", timeout)
    if code != 200:
        return None  # access to the list of models is restricted
    for model in json.loads(body or b"[]"):
        path = "/v2/models/" + urllib.parse.quote(model["name"], safe="") + "/ready"
        if model.get("state") == "READY" and status(host, port, "GET", path, timeout)[0] != 200:
            return f"the model {model['name']} was loaded, but does not work any more"
    return None


def main() -> int:
    """Run the check, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "host", nargs="?", default="localhost", help="name or address of the server (default: localhost)"
    )
    parser.add_argument("port", nargs="?", type=int, default=8000, help="HTTP port (default: 8000)")
    parser.add_argument(
        "--live", action="store_true", help="for liveness probes: do not ask whether the server is ready"
    )
    parser.add_argument("--timeout", type=float, default=4.0, help="seconds for each request (default: 4)")
    args = parser.parse_args()
    try:
        found = fault(args.host, args.port, args.timeout, args.live)
    except (OSError, http.client.HTTPException, ValueError) as error:
        found = f"{args.host}:{args.port} does not answer: {error or type(error).__name__}"
    if found is not None:
        print(f"model_health.py: {found}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
