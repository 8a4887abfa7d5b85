#!/usr/bin/env bash
# Download the gated SAM3 checkpoint into checkpoints/sam3 of this repository, from any working directory. First ask for
# access at https://huggingface.co/facebook/sam3 and log in with `hf auth login`. Most users need
# scripts/download_sam3_onnx.py instead, which requires neither. The variable PYTHON names the interpreter.
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" # the script works without an installation
exec "${PYTHON:-python3}" -m triton_sam download --directory "$root/checkpoints" sam3 checkpoint "$@"
