#!/usr/bin/env bash
# Download an official SAM2.1 checkpoint into checkpoints/ of this repository.
set -euo pipefail

usage() {
    cat <<'HELP'
usage: scripts/download_sam2.sh [tiny|small|base_plus|large] [--mirror URL] [--directory DIR] [--quiet]

Downloads an official SAM2.1 checkpoint (default: base_plus) into checkpoints/ of this repository, from any working
directory. An interrupted download continues where it stopped, and the SHA-256 is checked. When the right file exists
already, the script does nothing.

  --mirror URL      download URL/FILENAME instead (also: environment variable TRITON_SAM_MIRROR)
  --directory DIR   directory for the checkpoint (default: checkpoints/ of this repository)
  --quiet           show no progress bar

The variable PYTHON names the interpreter (default: python3). HTTPS_PROXY and NO_PROXY name the proxies.
HELP
}

size=base_plus
case "${1:-}" in
    -h | --help)
        usage
        exit 0
        ;;
    tiny | small | base_plus | large)
        size=$1
        shift
        ;;
    "" | -*) ;;
    *)
        echo "download_sam2.sh: there is no size '$1': choose tiny, small, base_plus or large" >&2
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
# PYTHONPATH makes the script work without an installation. The caller's --directory is last and takes precedence.
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
exec "${PYTHON:-python3}" -m triton_sam download sam2 "$size" --directory "$root/checkpoints" "$@"
