#!/usr/bin/env bash
# Serve a model repository with Triton, in Docker where it runs, otherwise with the local server.
set -euo pipefail

usage() {
    cat <<'HELP'
usage: [HTTP_PORT=8000] [GRPC_PORT=8001] [METRICS_PORT=8002] [TRITON_TAG=26.08-py3] scripts/run_triton.sh [MODEL_REPOSITORY]

Serves MODEL_REPOSITORY (default: model_repository of this project) until Ctrl-C. Uses NVIDIA's container where a Docker
daemon runs, otherwise the Triton of the nvidia-pytriton wheel (pip install -c constraints.txt -e ".[local]").

  BIND_ADDRESS   address to listen on (default: 127.0.0.1, for this host only, because Triton has no passwords)
  TRITON_IMAGE   container image (default: triton-sam:$TRITON_TAG of scripts/build_image.sh, which the session models
                 need; where it does not exist, NVIDIA's image, which serves encoders and decoders alone)
  SHM_SIZE       shared memory of the container (default: 1g); on a CPU it holds the cached embeddings
  TRITON_LOCAL=1 do not use Docker
  PYTHON         interpreter for the local server (default: python3)
HELP
}

case "${1:-}" in
    -h | --help)
        usage
        exit 0
        ;;
    -*)
        echo "run_triton.sh: there is no option '$1'" >&2
        usage >&2
        exit 2
        ;;
esac

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
repository=${1:-$root/model_repository}
if [[ ! -d $repository ]]; then
    echo "run_triton.sh: there is no model repository at $repository" >&2
    exit 1
fi
repository=$(cd -- "$repository" && pwd)
http_port=${HTTP_PORT:-8000} grpc_port=${GRPC_PORT:-8001} metrics_port=${METRICS_PORT:-8002}
address=${BIND_ADDRESS:-127.0.0.1}
tag=${TRITON_TAG:-26.08-py3}

if [[ ${TRITON_LOCAL:-0} == 1 ]] || ! docker info >/dev/null 2>&1; then
    export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
    exec "${PYTHON:-python3}" -m triton_sam serve --model-repository "$repository" --host "$address" \
        --http-port "$http_port" --grpc-port "$grpc_port" --metrics-port "$metrics_port"
fi

image=${TRITON_IMAGE:-}
if [[ -z $image ]]; then
    image=nvcr.io/nvidia/tritonserver:$tag
    docker image inspect "triton-sam:$tag" >/dev/null 2>&1 && image=triton-sam:$tag
fi

# Load only models that can work: Triton stops at a folder without weights, and at a model whose Python package is missing.
loads=()
for folder in "$repository"/*/; do
    name=$(basename "$folder")
    weights=$(find "$folder" -mindepth 2 -maxdepth 2 -type f ! -name '.*' | head -n 1)
    config=$folder/config.pbtxt
    if grep -qs 'platform: *"ensemble"' "$config"; then
        weights=ensemble
    fi
    if [[ $image == nvcr.io/* ]] && { grep -qs "triton_sam" "$folder"/*/model.py || grep -qs "_preprocess\"" "$config"; }; then
        echo "run_triton.sh: $name is left out, because it needs the image of scripts/build_image.sh" >&2
        continue
    fi
    # A session model names its encoder in a parameter. Without the encoder's weights it cannot work.
    encoder=$(sed -n 's/.*"encoder".*string_value: *"\([^"]*\)".*/\1/p' "$config" 2>/dev/null)
    if [[ -n $encoder && -z $(find "$repository/$encoder" -mindepth 2 -type f ! -name '.*' 2>/dev/null | head -n 1) ]]; then
        continue
    fi
    [[ -n $weights ]] && loads+=("--load-model=$name")
done

gpus=()
if command -v nvidia-smi >/dev/null 2>&1; then
    gpus=(--gpus all)
fi
exec docker run --rm "${gpus[@]}" --shm-size "${SHM_SIZE:-1g}" \
    -p "$address:$http_port:8000" -p "$address:$grpc_port:8001" -p "$address:$metrics_port:8002" \
    -v "$repository:/models:ro" "$image" \
    tritonserver --model-repository=/models --model-control-mode=explicit "${loads[@]}"
