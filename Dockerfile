# A worker of examples/app.py; docker-compose.yml runs the dashboard in the same image. For your own application copy its package in place of examples/, and change CMD.
FROM python:3.13-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE .ci/constraints.txt ./
COPY pgqueue pgqueue
COPY migrations migrations
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels . \
    && python -m venv /opt/pgqueue \
    && /opt/pgqueue/bin/pip install --no-cache-dir -c constraints.txt "$(echo /wheels/*.whl)[cron,dashboard,fast,jobs]"

FROM python:3.13-slim
COPY --from=build /opt/pgqueue /opt/pgqueue
ENV PATH=/opt/pgqueue/bin:$PATH PYTHONUNBUFFERED=1
WORKDIR /app
COPY examples examples
# By number: Kubernetes cannot see that a user with a name is not root.
USER 65534:65534
HEALTHCHECK --interval=5s --timeout=5s --retries=6 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8080/ready', timeout=4)"]
# The exec form: the worker, not a shell, gets SIGTERM. `docker stop` waits for 10 s, so the grace is shorter.
CMD ["pgqueue", "worker", "examples.app:client", "--health", "8080", "--grace", "8"]
