# Tamis with CUDA 12, for models on GPUs and deduplication with CuPy. Build it in the repository root:
#
#     docker build -f docker/cuda.Dockerfile -t tamis:cuda .
#     docker run --rm --init --gpus all --ipc host -v "$PWD:/data" tamis:cuda doctor
#
# The host needs the NVIDIA driver and the NVIDIA Container Toolkit. PyTorch brings its own libraries of CUDA; those of the base
# image are for CuPy.
ARG CUDA_VERSION=12.9.1
FROM nvidia/cuda:${CUDA_VERSION}-runtime-ubuntu24.04 AS python

# Ubuntu's security updates replace versions, so that a pinned one could not be installed a month later.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3.12 python3.12-venv \
    && rm -rf /var/lib/apt/lists/*

FROM python AS build

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
RUN python3.12 -m venv /opt/tamis
ENV PATH=/opt/tamis/bin:$PATH

# The dependencies first: this layer is kept while only the code changes.
ARG EXTRAS=s3,text,language,web,image,audio,video,models,onnx,gpu,metrics,dashboard
ARG TORCH_INDEX=https://download.pytorch.org/whl/cu129
COPY pyproject.toml README.md LICENSE tests/constraints.txt ./
COPY tamis/__init__.py tamis/
RUN pip install --extra-index-url "${TORCH_INDEX}" --constraint constraints.txt ".[${EXTRAS}]"
COPY tamis tamis
RUN pip install --no-deps --force-reinstall . \
    && pip uninstall --yes pip \
    && find /opt/tamis -type d -name tests -prune -exec rm -rf {} +

FROM python

LABEL org.opencontainers.image.title="tamis" \
      org.opencontainers.image.description="Curate training data for foundation models, with CUDA" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN userdel --remove ubuntu \
    && useradd --uid 1000 --create-home tamis \
    && install --directory --owner tamis --group tamis /data /var/cache/tamis
COPY --from=build /opt/tamis /opt/tamis
# Compiled kernels and models are kept in /var/cache/tamis; mount a volume there, so that the next container finds them.
ENV PATH=/opt/tamis/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    NUMBA_CACHE_DIR=/var/cache/tamis/kernels \
    CUPY_CACHE_DIR=/var/cache/tamis/cupy \
    HF_HOME=/var/cache/tamis/huggingface \
    TAMIS_MODELS=/var/cache/tamis/models \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 1000:1000
WORKDIR /data
HEALTHCHECK --interval=5m --timeout=60s --start-period=30s CMD ["tamis", "doctor", "/tmp"]
ENTRYPOINT ["tamis"]
CMD ["doctor", "/tmp"]
