#!/usr/bin/env bash
# Ask a Triton server whether it is alive and ready, and which models it has loaded.
set -euo pipefail

usage() {
    cat <<'HELP'
usage: scripts/health_check.sh [HOST [PORT]]

Asks the server at HOST (default: localhost) and HTTP port PORT (default: 8000). The exit status is 0 when it is ready.
HELP
}

case "${1:-}" in
    -h | --help)
        usage
        exit 0
        ;;
esac
url=http://${1:-localhost}:${2:-8000}

if ! curl --fail --silent --max-time 10 "$url/v2/health/live" >/dev/null; then
    echo "health_check.sh: nothing answers at $url" >&2
    exit 1
fi
if ! curl --fail --silent --max-time 10 "$url/v2/health/ready" >/dev/null; then
    echo "health_check.sh: $url is alive, but not ready" >&2
    exit 1
fi
echo "$url is ready"
# This lists the models. Triton has no GET /v2/models.
curl --fail --silent --max-time 10 --request POST "$url/v2/repository/index"
echo
