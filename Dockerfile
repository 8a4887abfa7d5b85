# NVIDIA's Triton with the triton_sam package, which the session models (sam2, ...) run. See scripts/build_image.sh.
ARG TRITON_TAG=25.01-py3
FROM nvcr.io/nvidia/tritonserver:${TRITON_TAG}
COPY . /opt/triton-sam
# numpy stays the one that the image came with: its Python backend was built against it.
RUN PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --no-cache-dir "numpy==$(python3 -c 'import numpy; print(numpy.__version__)')" /opt/triton-sam
