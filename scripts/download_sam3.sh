#!/usr/bin/env bash
# Download the gated SAM3 checkpoint into checkpoints/sam3 of this repository.
set -euo pipefail

for argument in "$@"; do
    if [[ $argument == -h || $argument == --help ]]; then
        cat <<'HELP'
usage: scripts/download_sam3.sh [--mirror URL] [--directory DIR] [--quiet]

Downloads the gated SAM3 checkpoint (facebook/sam3 on the Hugging Face hub) into checkpoints/sam3 of this repository,
for scripts/export_sam3_to_onnx.py. Ask for access at https://huggingface.co/facebook/sam3, then log in once with
scripts/hf_login.py. Most users want scripts/download_sam3_onnx.py instead, which needs neither.

  --mirror URL      another hub than https://huggingface.co (also: environment variable HF_ENDPOINT)
  --directory DIR   another directory than checkpoints/ of this repository
  --quiet           no progress bar

PYTHON names the interpreter to use (default: python3); it needs this package with its `export` extra.
HELP
        exit 0
    fi
done

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
# Works without an installation too; the caller's own --directory comes later and wins.
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
exec "${PYTHON:-python3}" "$root/scripts/download_sam3.py" --directory "$root/checkpoints" "$@"
