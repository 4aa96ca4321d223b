# Trains on CPUs, to try an image before accelerators are paid for:
# docker build -f deploy/docker/cpu.Dockerfile -t lingpipe/cpu .
FROM python:3.11-slim
ENV PYTHONUNBUFFERED=1
RUN useradd --create-home --uid 1000 lingpipe
WORKDIR /home/lingpipe/lingpipe
# Packages come first, so that a change of the code does not install them anew.
COPY requirements/gpu.txt requirements/test.txt requirements/
# The versions of the GPU image, without CUDA.
RUN sed "/^nvidia-/d" requirements/gpu.txt > requirements/cpu.txt \
    && pip install --no-cache-dir -r requirements/cpu.txt
COPY setup.py pyproject.toml README.md run.py ./
COPY lingpipe lingpipe
COPY params params
# Its requirements are there already, in pinned versions.
RUN pip install --no-cache-dir --no-deps .
USER 1000
ENTRYPOINT ["python", "run.py"]
