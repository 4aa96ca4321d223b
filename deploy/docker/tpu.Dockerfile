# Trains on Cloud TPUs: docker build -f deploy/docker/tpu.Dockerfile -t lingpipe/tpu .
FROM python:3.11-slim
ENV PYTHONUNBUFFERED=1
RUN useradd --create-home --uid 1000 lingpipe
WORKDIR /home/lingpipe/lingpipe
# Packages come first, so that a change of the code does not install them anew.
COPY requirements/tpu.txt requirements/test.txt requirements/
RUN pip install --no-cache-dir -r requirements/tpu.txt
COPY setup.py pyproject.toml README.md run.py ./
COPY lingpipe lingpipe
COPY params params
# With its requirements pip would bring `tensorflow`, which drives no TPU.
RUN pip install --no-cache-dir --no-deps .
USER 1000
ENTRYPOINT ["python", "run.py"]
