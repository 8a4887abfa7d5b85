"""A real Prometheus with our configuration and rules, which scrapes one server every second."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import yaml
from support.nginx_proxy import free_ports

from triton_sam._common.bundle import checkout

PROGRAM = shutil.which("prometheus")


class Prometheus:
    """A context manager that runs Prometheus.

    Args:
        metrics_url: the metrics of the server. Only the discovery differs from the repository's configuration, because
            DNS names of containers exist only in the compose network.
        folder: for configuration, data and log.
        labels: labels that discovery in Kubernetes would add, such as namespace.
    """

    def __init__(self, metrics_url: str, folder: Path, labels: dict[str, str]) -> None:
        root = checkout()
        assert root is not None
        monitoring = root / "deploy/monitoring"
        described = yaml.safe_load((monitoring / "prometheus.yml").read_text())
        (job,) = described["scrape_configs"]
        del job["dns_sd_configs"]
        self.target = metrics_url.removeprefix("http://").removesuffix("/metrics")
        job["static_configs"] = [{"targets": [self.target], "labels": labels}]
        described["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        folder.mkdir()
        (folder / "prometheus.yml").write_text(yaml.safe_dump(described))
        shutil.copy(monitoring / "rules.yml", folder)
        self._folder = folder
        self._log = folder / "log"

    def __enter__(self) -> Prometheus:
        (self._port,) = free_ports(1)
        command = [
            str(PROGRAM),
            f"--config.file={self._folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self._folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self._port}",
        ]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(30)

    def get(self, path: str) -> Any:
        """Return the data of a response of the API; an empty list while Prometheus starts.

        Raises:
            AssertionError: Prometheus ended, or refuses the request.
        """
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/api/v1/{path}", timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            if error.code == 503:  # it is still loading its data
                return []
            raise AssertionError(f"{path}: {error.read().decode()}") from error
        except OSError:
            assert self._process.poll() is None, self._log.read_text()
            return []

    def query(self, expression: str) -> dict[tuple[str, ...], float]:
        """Return the current values of an expression, by the values of their labels `model` and `kind`."""
        data = self.get(f"query?query={urllib.parse.quote(expression)}")
        return {
            tuple(one["metric"][name] for name in ("model", "kind") if name in one["metric"]): float(one["value"][1])
            for one in (data["result"] if data else [])
        }

    def alerts(self) -> set[tuple[str, str]]:
        """Return the names and models of alerts whose expression is true, including pending alerts."""
        data = self.get("alerts")
        found = data["alerts"] if data else []
        return {(alert["labels"]["alertname"], alert["labels"].get("model", "")) for alert in found}
