"""Serves one of the applications of examples/dashboards.py: `python dashboards.py NAME PORT`."""

from __future__ import annotations

import sys

import uvicorn
from werkzeug.serving import make_server

from examples import dashboards

if __name__ == "__main__":
    name, port = sys.argv[1], int(sys.argv[2])
    app = getattr(dashboards, name)
    if name in ("flask_app", "django_wsgi"):
        make_server("127.0.0.1", port, app, threaded=True).serve_forever()
    else:
        uvicorn.run(app, port=port, log_level="warning", timeout_graceful_shutdown=1)
