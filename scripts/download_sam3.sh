#!/usr/bin/env bash
# Download the gated SAM3 checkpoint into checkpoints/sam3 of this repository.
set -euo pipefail

for argument in "$@"; do
    if [[ $argument == -h || $argument == --help ]]; then
        cat <<'HELP'
usage: scripts/download_sam3.sh [--mirror URL] [--directory DIR] [--quiet]

Downloads the gated SAM3 checkpoint (facebook/sam3 on the Hugging Face hub) into checkpoints/sam3 of this repository,
for scripts/export_sam3_to_onnx.py. First ask for access at https://huggingface.co/facebook/sam3 and log in with
\`hf auth login\`. Most users need scripts/download_sam3_onnx.py instead, which requires neither.

  --mirror URL      hub to use (default: https://huggingface.co; also: environment variable HF_ENDPOINT)
  --directory DIR   directory for the checkpoint (default: checkpoints/ of this repository)
  --quiet           show no progress bar

The variable PYTHON names the interpreter (default: python3). It needs this package with its `export` extra.
HELP
        exit 0
    fi
done

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
# PYTHONPATH makes the script work without an installation. The caller's --directory is last and takes precedence.
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
exec "${PYTHON:-python3}" "$root/scripts/download_sam3.py" --directory "$root/checkpoints" "$@"
