#!/usr/bin/env bash
# Build a Triton image with the triton_sam package, which the session models need.
set -euo pipefail

usage() {
    cat <<'HELP'
usage: [TRITON_TAG=TAG] [TARGET=triton] scripts/build_image.sh [IMAGE]

Builds IMAGE (default: triton-sam:$TRITON_TAG) from NVIDIA's nvcr.io/nvidia/tritonserver:$TRITON_TAG and this package, with
docker or podman. scripts/run_triton.sh does this by itself when the image is missing. After a change of the package, run
this script again.

  TRITON_TAG        release of Triton (default: the one in the Dockerfile)
  TARGET            stage of the Dockerfile: triton, export (downloads and exports checkpoints) or service (REST and web
                    page). The default names of the last two are triton-sam-export:latest and triton-sam-service:latest.
  EXTRAS            with TARGET=export: "export" adds PyTorch, for SAM3's words, SAM2.0, and models of other sizes
  CONTAINER_ENGINE  docker or podman (default: the one that answers)
HELP
}

case "${1:-}" in
    -h | --help)
        usage
        exit 0
        ;;
esac
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=/dev/null
source "$root/scripts/lib/containers.sh"
tag=$(triton_tag "$root")
target=${TARGET:-triton}
case "$target" in
    triton) image=triton-sam:$tag ;;
    export | service) image=triton-sam-$target:latest ;;
    *)
        echo "build_image.sh: there is no TARGET '$target': choose triton, export or service" >&2
        exit 2
        ;;
esac
if ! engine=$(container_engine); then
    echo "build_image.sh: neither docker nor podman answers: start one, or use scripts/run_triton.sh without a container" >&2
    exit 1
fi
exec "$engine" build --build-arg "TRITON_TAG=$tag" ${EXTRAS:+--build-arg "EXTRAS=$EXTRAS"} \
    --target "$target" --tag "${1:-$image}" "$root"
