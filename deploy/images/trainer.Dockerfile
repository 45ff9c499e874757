# The provisioner with the engine of one machine: its nodes are processes in its own container, each a runner and the torchrun that it starts. The same image trains on CPU and, given one, on an NVIDIA GPU.
FROM python:3.11.14-slim-bookworm AS packages
RUN pip install --no-cache-dir --disable-pip-version-check uv==0.13.9
WORKDIR /build
COPY pyproject.toml requirements.lock deploy/images/install.sh ./
ARG EXTRAS="training kubernetes"
RUN uv venv /opt/venv && sh install.sh /opt/venv $EXTRAS

FROM python:3.11.14-slim-bookworm
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
