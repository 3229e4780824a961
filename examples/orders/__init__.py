"""A shop's orders, once with Celery and once with pgqueue: the example of docs/guides/from-celery.md.

    python -m examples.orders run before            # with Celery: in memory, or with --redis on a Redis of its own
    python -m examples.orders run after             # with pgqueue: on PGQUEUE_DSN, else an embedded server
    python -m examples.orders measure --redis       # both, in turn, and their times

Each order is charged, with a retry if the bank is down, and its receipt is mailed. A report waits for all charges.
Every second a reminder is mailed. The code that both applications share is in shop.py.
"""
