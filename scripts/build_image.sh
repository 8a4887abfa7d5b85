#!/usr/bin/env bash
# Build a Triton image with the triton_sam package, which the session models need.
set -euo pipefail

usage() {
    cat <<'HELP'
usage: [TRITON_TAG=26.08-py3] [TARGET=triton] scripts/build_image.sh [IMAGE]

Builds IMAGE (default: triton-sam:$TRITON_TAG) from NVIDIA's nvcr.io/nvidia/tritonserver:$TRITON_TAG and this package.
After that, scripts/run_triton.sh uses it.

  TARGET   stage of the Dockerfile: triton, export (downloads and exports checkpoints) or service (REST and web page).
           The default names of the last two are triton-sam-export:latest and triton-sam-service:latest.
HELP
}

case "${1:-}" in
    -h | --help)
        usage
        exit 0
        ;;
esac
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
tag=${TRITON_TAG:-26.08-py3}
target=${TARGET:-triton}
case "$target" in
    triton) image=triton-sam:$tag ;;
    export | service) image=triton-sam-$target:latest ;;
    *)
        echo "build_image.sh: there is no TARGET '$target': choose triton, export or service" >&2
        exit 2
        ;;
esac
if ! docker info >/dev/null 2>&1; then
    echo "build_image.sh: no Docker daemon answers: start one, or use scripts/run_triton.sh without Docker" >&2
    exit 1
fi
exec docker build --build-arg "TRITON_TAG=$tag" --target "$target" --tag "${1:-$image}" "$root"
