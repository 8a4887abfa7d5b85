#!/usr/bin/env bash
# Download an official SAM1 checkpoint into checkpoints/ of this repository.
set -euo pipefail

usage() {
    cat <<'HELP'
usage: scripts/download_sam1.sh [vit_h|vit_l|vit_b] [--mirror URL] [--directory DIR] [--quiet]

Downloads an official SAM1 checkpoint (default: vit_b) into checkpoints/ of this repository, from any working
directory. A broken download goes on where it stopped, the SHA-256 is checked, and nothing is done when the right file
is there already.

  --mirror URL      get the file from URL/FILENAME instead (also: environment variable TRITON_SAM_MIRROR)
  --directory DIR   another directory than checkpoints/ of this repository
  --quiet           no progress bar

PYTHON names the interpreter to use (default: python3). Proxies are taken from HTTPS_PROXY and NO_PROXY.
HELP
}

size=vit_b
case "${1:-}" in
    -h | --help)
        usage
        exit 0
        ;;
    vit_h | vit_l | vit_b)
        size=$1
        shift
        ;;
    "" | -*) ;;
    *)
        echo "download_sam1.sh: no size '$1': choose vit_h, vit_l or vit_b" >&2
        exit 2
        ;;
esac
for argument in "$@"; do
    if [[ $argument == -h || $argument == --help ]]; then
        usage
        exit 0
    fi
done

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
# Works without an installation too; the caller's own --directory comes later and wins.
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
exec "${PYTHON:-python3}" -m triton_sam download sam1 "$size" --directory "$root/checkpoints" "$@"
