# Trains on NVIDIA GPUs; the driver is the node's: docker build -f deploy/docker/gpu.Dockerfile -t lingpipe/gpu .
FROM python:3.11-slim
ENV PYTHONUNBUFFERED=1
RUN useradd --create-home --uid 1000 lingpipe
WORKDIR /home/lingpipe/lingpipe
# Packages come first, so that a change of the code does not install them anew.
COPY requirements/gpu.txt requirements/test.txt requirements/
RUN pip install --no-cache-dir -r requirements/gpu.txt
COPY setup.py pyproject.toml README.md run.py ./
COPY lingpipe lingpipe
COPY params params
# Its requirements are there already, in pinned versions.
RUN pip install --no-cache-dir --no-deps .
USER 1000
ENTRYPOINT ["python", "run.py"]
