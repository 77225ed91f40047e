# zonemta in a container: slim, not root, the queue and the event log on a volume.
#
#   docker build -t zonemta .                          the relay
#   docker build -t zonemta-pipeline --target pipeline .   with Spark's dependencies
#   docker run -p 127.0.0.1:2525:2525 --hostname relay.example.com -v zonemta:/var/lib/zonemta zonemta

FROM python:3.12-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY config config
COPY zonemta_py zonemta_py
RUN python -m venv /opt/zonemta && /opt/zonemta/bin/pip install --no-cache-dir '.[redis,s3]'

FROM build AS build-pipeline
RUN /opt/zonemta/bin/pip install --no-cache-dir '.[pipeline,redis,s3]'

FROM python:3.12-slim AS base
RUN useradd --system --uid 2525 --home-dir /var/lib/zonemta zonemta \
    && install -d -o zonemta -g zonemta /var/lib/zonemta
COPY config/docker.yaml /etc/zonemta/zonemta.yaml
ENV PATH=/opt/zonemta/bin:$PATH ZONEMTA_CONFIG=/etc/zonemta/zonemta.yaml PYTHONUNBUFFERED=1
USER zonemta
VOLUME /var/lib/zonemta
EXPOSE 2525
HEALTHCHECK --interval=30s --timeout=10s --start-period=20s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8125/livez', timeout=5)"]
STOPSIGNAL SIGTERM
# The exec form makes the relay process 1, so that signals reach it.
CMD ["zonemta", "serve"]

FROM base AS pipeline
USER root
RUN apt-get update && apt-get install -y --no-install-recommends default-jre-headless \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build-pipeline /opt/zonemta /opt/zonemta
USER zonemta

FROM base AS relay
COPY --from=build /opt/zonemta /opt/zonemta
