# The serving controller and the vLLM replicas that it starts, on an NVIDIA GPU. The driver is the host's, the rest of CUDA comes with the packages.
FROM python:3.11.14-slim-bookworm AS packages
RUN pip install --no-cache-dir --disable-pip-version-check uv==0.13.9
WORKDIR /build
COPY pyproject.toml requirements-gpu.lock deploy/images/gpu.toml deploy/images/install.sh ./
ARG EXTRAS="serving-gpu"
RUN uv venv /opt/venv && LOCK=requirements-gpu.lock UV_CONFIG_FILE=gpu.toml sh install.sh /opt/venv $EXTRAS

FROM python:3.11.14-slim-bookworm
# Triton and torch compile what starts their kernels when a replica starts.
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
RUN useradd --uid 10001 --no-create-home --home-dir /var/lib/retune --shell /usr/sbin/nologin retune && \
    install -d -m 0700 -o retune -g retune /var/lib/retune && cd /var/lib/retune && \
    install -d -m 0700 -o retune -g retune scratch nodes replicas replica-keys cache
COPY --from=packages /opt/venv /opt/venv
WORKDIR /app
COPY schemas schemas
COPY shared shared
COPY services services
COPY deploy/__init__.py deploy/
COPY deploy/bootstrap deploy/bootstrap
COPY deploy/images/healthy.py deploy/images/
ENV PATH=/opt/venv/bin:$PATH PYTHONPATH=/app PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
RUN python -m compileall -q schemas shared services deploy
USER 10001:10001
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=5s --start-period=120s --retries=6 \
    CMD ["python", "deploy/images/healthy.py"]
