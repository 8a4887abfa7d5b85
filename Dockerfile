# syntax=docker/dockerfile:1
# Four images from one source. docker-compose.yml and scripts/build_image.sh name the target that they build.
#   triton   NVIDIA's Triton with the light core of triton_sam, which the session models (sam2, ...) need. The default.
#   export   downloads official checkpoints and exports them, for hosts without Python: docs/how-to/deploy.md
#   service  the REST service and its web page
#   cpu      the Triton of the local server with its backend, for hosts without a GPU
# No build machine has run these images on a GPU yet.
# An image by its digest: --build-arg TRITON_TAG=26.08-py3@sha256:...
ARG TRITON_TAG=26.08-py3
ARG PYTHON_TAG=3.11-slim-bookworm

FROM python:${PYTHON_TAG} AS export
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1 SAM2_BUILD_CUDA=0
# Official models need no PyTorch. EXTRAS=export installs it, for SAM3's words, and models of other sizes. The
# export runs on the CPU: this index has PyTorch's wheels without CUDA, whose versions (2.15.0+cpu) rank above those of
# the same number (2.15.0) with gigabytes of CUDA libraries.
ARG EXTRAS=
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /opt/triton-sam
COPY . .
# An export also runs its graphs, so it needs ONNX Runtime; the extra local would bring Triton, too.
# The user has the uid 1000 of Triton's container, so that both may write to the same volume.
RUN pip install --constraint constraints.txt ${EXTRAS:+--extra-index-url "$TORCH_INDEX"} ".${EXTRAS:+[$EXTRAS]}" \
    onnx onnxruntime ml_dtypes huggingface_hub xxhash \
    && useradd --uid 1000 --create-home sam \
    && install --directory --owner=1000 --group=1000 /models /checkpoints
USER 1000:1000
# `triton-sam setup` downloads to checkpoints/ in its working directory.
WORKDIR /
ENV TRITON_SAM_REPOSITORY=/models ORT_DISABLE_TELEMETRY=1
VOLUME ["/models", "/checkpoints"]
# The entry point first copies the config.pbtxt files and the small default model into an empty volume.
ENTRYPOINT ["/opt/triton-sam/scripts/container_setup.sh"]
CMD ["sam2", "base_plus"]

FROM python:${PYTHON_TAG} AS service
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1
WORKDIR /opt/triton-sam
COPY . .
# It also runs the jobs of `triton-sam annotate`, which may read images from URLs and S3.
RUN pip install --constraint constraints.txt ".[service,video,remote]" s3fs \
    && useradd --uid 1000 --create-home sam \
    && install --directory --owner=1000 --group=1000 /uploads
USER 1000:1000
WORKDIR /home/sam
EXPOSE 8080
ENTRYPOINT ["triton-sam"]
CMD ["service", "--host", "0.0.0.0", "--port", "8080", "--url", "grpc://triton:8001"]

FROM python:${PYTHON_TAG} AS cpu
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1
WORKDIR /opt/triton-sam
COPY . .
RUN pip install --constraint constraints.txt ".[local]" \
    && useradd --uid 1000 --create-home sam \
    && install --directory --owner=1000 --group=1000 /models
USER 1000:1000
WORKDIR /tmp
ENV TRITON_SAM_REPOSITORY=/models ORT_DISABLE_TELEMETRY=1
EXPOSE 8000 8001 8002
HEALTHCHECK --interval=10s --timeout=10s --start-period=60s --retries=3 \
    CMD ["python3", "/opt/triton-sam/scripts/model_health.py"]
CMD ["triton-sam", "serve", "--host", "0.0.0.0", "--verbose"]

FROM nvcr.io/nvidia/tritonserver:${TRITON_TAG} AS triton
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_BREAK_SYSTEM_PACKAGES=1
WORKDIR /opt/triton-sam
COPY . .
# The numpy of the image stays, because the image's Python backend was built against it. NVIDIA installs numpy<2.
RUN numpy=$(python3 -c 'import numpy; print(numpy.__version__)') \
    && sed "s/^numpy==.*/numpy==$numpy/" constraints.txt >/tmp/constraints.txt \
    && python3 -m pip install --constraint /tmp/constraints.txt ".[concepts]" \
    && install --directory --owner=1000 --group=1000 /var/cache/triton-sam /models
# This is the user triton-server of NVIDIA's image.
USER 1000:1000
WORKDIR /tmp
ENV TRITON_SAM_REPOSITORY=/models ORT_DISABLE_TELEMETRY=1
EXPOSE 8000 8001 8002
HEALTHCHECK --interval=10s --timeout=10s --start-period=300s --retries=3 \
    CMD ["python3", "/opt/triton-sam/scripts/model_health.py"]
# NVIDIA's entry point stays: it checks driver and shared memory, and starts this command.
CMD ["triton-sam", "container"]
