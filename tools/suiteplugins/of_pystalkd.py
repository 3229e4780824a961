"""A plugin of pytest for pystalkd's tests, which connects them to the server at SUITE_URL, a HOST:PORT.

Run by themselves, they take a port from the command line as text, which their socket refuses.
"""

from __future__ import annotations

import os

from pystalkd import Beanstalkd

host, _, port = os.environ["SUITE_URL"].rpartition(":")
Beanstalkd.DEFAULT_HOST, Beanstalkd.DEFAULT_PORT = host, int(port)
