"""The alerts in Kubernetes, which are those of deploy/monitoring/rules.yml in another form."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

RULE = "deploy/kubernetes/overlays/autoscaled/prometheus-rule.yaml"
RULE_HEAD = """# Written from deploy/monitoring/rules.yml: python scripts/lint_deploy.py --write
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: triton-sam
  labels:
    app.kubernetes.io/name: triton-sam
    # The chart kube-prometheus-stack selects by the name of its own release.
    release: kube-prometheus-stack
spec:
"""


def faults(root: Path) -> Iterable[str]:
    """Yield a fault if the alerts in Kubernetes are not those of the compose file."""
    if (root / RULE).read_text(encoding="utf-8") != manifest(root):
        yield f"{RULE} is not what deploy/monitoring/rules.yml says: run python scripts/lint_deploy.py --write"


def write(root: Path) -> None:
    """Write the manifest anew."""
    (root / RULE).write_text(manifest(root), encoding="utf-8")


def manifest(root: Path) -> str:
    """Return the alerts of deploy/monitoring/rules.yml as a PrometheusRule."""
    groups = (root / "deploy/monitoring/rules.yml").read_text(encoding="utf-8").partition("\ngroups:\n")[2]
    return RULE_HEAD + "".join(f"  {line}\n" if line else "\n" for line in ["groups:", *groups.splitlines()])
