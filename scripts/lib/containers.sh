# shellcheck shell=bash
# Functions shared by the scripts, not a program.

# Print the container program to use, docker or podman: the first one that answers. Fail if none does.
# CONTAINER_ENGINE names the only candidate.
container_engine() {
    local engine
    for engine in ${CONTAINER_ENGINE:-docker podman}; do
        if command -v "$engine" >/dev/null 2>&1 && "$engine" info >/dev/null 2>&1; then
            echo "$engine"
            return 0
        fi
    done
    return 1
}

# Print the tag of NVIDIA's image: $TRITON_TAG, or the default of the Dockerfile in the folder $1.
triton_tag() {
    echo "${TRITON_TAG:-$(sed -n 's/^ARG TRITON_TAG=//p' "$1/Dockerfile" | head -n 1)}"
}
