# A service that starts no program but its own code: the control services, and with their extras gateway, ingest, registry, tracker and the command line.
FROM python:3.11.14-slim-bookworm AS packages
RUN pip install --no-cache-dir --disable-pip-version-check uv==0.13.9
WORKDIR /build
COPY pyproject.toml requirements.lock deploy/images/install.sh ./
ARG EXTRAS=""
RUN uv venv /opt/venv && sh install.sh /opt/venv $EXTRAS

FROM python:3.11.14-slim-bookworm
RUN useradd --uid 10001 --no-create-home --home-dir /var/lib/retune --shell /usr/sbin/nologin retune && \
    install -d -m 0700 -o retune -g retune /var/lib/retune && cd /var/lib/retune && \
    install -d -m 0700 -o retune -g retune scratch nodes replicas replica-keys cache auditor audit-public
COPY --from=packages /opt/venv /opt/venv
WORKDIR /app
COPY schemas schemas
COPY shared shared
COPY services services
COPY ops ops
COPY cli cli
COPY deploy/__init__.py deploy/
COPY deploy/bootstrap deploy/bootstrap
COPY deploy/suites deploy/suites
COPY deploy/images/healthy.py deploy/images/
ENV PATH=/opt/venv/bin:$PATH PYTHONPATH=/app PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
RUN python -m compileall -q schemas shared services ops cli deploy
USER 10001:10001
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=5s --start-period=120s --retries=6 \
    CMD ["python", "deploy/images/healthy.py"]
