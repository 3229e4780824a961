"""Tests of applications: run the tasks that were put, in the test's own order and time.

    without_database(client)   keeps the tasks of the client's jobs in memory, with a clock to set
    drain(client)              runs the tasks in the queues of a real database, in this thread, until none is left

pytest: `pytest_plugins = ["pgqueue.testing.fixtures"]` in conftest.py. unittest: `pgqueue.testing.unittest.JobsMixin`.
"""

from .drained import drain
from .memory import Tasks, without_database
from .records import Ran

__all__ = ["Ran", "Tasks", "drain", "without_database"]
