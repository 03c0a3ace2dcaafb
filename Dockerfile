# Every distribution of this repository and vLLM, for machines with CUDA. It was never built here: CI checks it.
#   docker build -t rlhf .
#   docker run --gpus all --ipc=host --volume /shared:/shared rlhf doctor --device cuda
FROM python:3.11-slim
# make, and the compiler that Triton calls.
RUN apt-get update && apt-get install -y --no-install-recommends build-essential && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/rlhf
COPY . .
RUN make install CONSTRAINTS=constraints-cuda.txt PYTHON=python3.11
RUN .venv/bin/pip install --no-cache-dir -c constraints-cuda.txt vllm
ENV PATH=/opt/rlhf/.venv/bin:$PATH
ENTRYPOINT ["rlhf"]
