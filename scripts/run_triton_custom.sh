#!/usr/bin/env bash
# Serve your own SAM2 checkpoint: export it, unless the repository holds it already, then run Triton.
set -euo pipefail

usage() {
    cat <<'HELP'
usage: SAM2_CHECKPOINT=/abs/file.pt [SAM2_MODEL_CFG=NAME] scripts/run_triton_custom.sh [MODEL_REPOSITORY]

Exports the checkpoint into MODEL_REPOSITORY (default: model_repository of this project), unless the newest version there
was exported from the same file. Then serves it with scripts/run_triton.sh, whose variables apply as well.

  SAM2_CHECKPOINT   absolute path of a SAM2.1 or SAM2.0 checkpoint
  SAM2_MODEL_CFG    model configuration, for example configs/sam2.1/sam2.1_hiera_l.yaml (default: from the file name)
  PYTHON            interpreter with the export extra: pip install -c constraints.txt -e ".[export]" (default: python3)
HELP
}

case "${1:-}" in
    -h | --help)
        usage
        exit 0
        ;;
esac
checkpoint=${SAM2_CHECKPOINT:-}
if [[ -z $checkpoint || $checkpoint != /* ]]; then
    echo "run_triton_custom.sh: set SAM2_CHECKPOINT to the absolute path of a checkpoint" >&2
    exit 2
fi
if [[ ! -f $checkpoint ]]; then
    echo "run_triton_custom.sh: there is no checkpoint at $checkpoint" >&2
    exit 1
fi
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
repository=${1:-$root/model_repository}
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
python=${PYTHON:-python3}

exported_from() {
    "$python" - "$repository" <<'PYTHON'
import sys
from pathlib import Path
from triton_sam.repository import list_models
models = list_models(Path(sys.argv[1])) if Path(sys.argv[1]).is_dir() else []
metadata = {model.name: model.metadata for model in models}
print(metadata.get("sam2_encoder", {}).get("triton_sam.checkpoint_sha256", ""))
PYTHON
}

if [[ $(exported_from) == "$(sha256sum "$checkpoint" | cut -d ' ' -f 1)" ]]; then
    echo "run_triton_custom.sh: $repository holds this checkpoint already"
else
    options=()
    [[ -n ${SAM2_MODEL_CFG:-} ]] && options=(--model-cfg "$SAM2_MODEL_CFG")
    "$python" "$root/scripts/export_sam2_to_onnx.py" --checkpoint "$checkpoint" --output-dir "$repository" "${options[@]}"
    for model in sam2 sam2_preprocess sam2_encoder_jpeg; do
        [[ -e $repository/$model ]] || cp -r "$root/model_repository/$model" "$repository/$model"
    done
fi
exec "$root/scripts/run_triton.sh" "$repository"
