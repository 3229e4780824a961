"""The name of the transport in kombu.

kombu has no entry point for transports, only a table of names, and refuses URLs that name a class. But it loads the
entry points of its serializers, and so this module, which enters the name. They are loaded with the first message,
producer or Celery application; a program that makes a bare kombu.Connection before imports pgqueue.contrib.celery.
"""

from __future__ import annotations

import json

from kombu.transport import TRANSPORT_ALIASES

TRANSPORT_ALIASES["pgqueue"] = "pgqueue.contrib.celery.transport:Transport"

#: The arguments of kombu's `register` after the name: JSON without kombu's own types.
SERIALIZER = (json.dumps, json.loads, "application/x-pgqueue-json", "utf-8")
