"""A shop's queues, for the pictures of the dashboard and for its tests: tasks in every state, and a worker at work.

python tools/shop.py "$PGQUEUE_DSN"          # fills the database, and works until it is stopped
"""

from __future__ import annotations

import contextlib
import random
import sys
import threading
import time
from collections.abc import Iterator

import psycopg

import pgqueue
from pgqueue import Put

CITIES = ("Bergen", "Lisbon", "Porto", "Gdansk", "Utrecht", "Turku", "Graz", "Ghent")


def register(client: pgqueue.Client) -> None:
    """The jobs of the shop."""

    @client.job(queue="mail", name="shop.send_receipt", retry=pgqueue.Retry(attempts=1))
    def send_receipt(order: int, to: str) -> None:
        time.sleep(random.uniform(0.002, 0.02))
        if order % 53 == 0:
            raise ConnectionRefusedError("smtp.example.org refused the connection")

    @client.job(queue="images", name="shop.resize", retry=pgqueue.Retry(attempts=1))
    def resize(photo: int, width: int) -> None:
        time.sleep(random.uniform(0.01, 0.08))
        if photo % 41 == 0:
            raise ValueError("the photo has no pixels")

    @client.job(queue="exports", name="shop.export", keep_result=3600)
    def export(city: str, *, task: pgqueue.Task) -> None:
        for step in range(1, 6001):
            task.progress(round(step / 6000, 3))
            if STOP.wait(0.1):
                return


STOP = threading.Event()


def fill(client: pgqueue.Client) -> None:
    """Tasks in every state, and one of everything else."""
    for name, options in {
        "mail": {"ttr": 60, "max_takes": 5},
        "images": {"keep_done": 3600},
        "newsletter": {"priority": 10},
        "imports": {"capacity": 500},
        "exports": {"ttr": 900},
        "orders": {},
        "reports": {},
    }.items():
        client.create_queue(name, if_not_exists=True, **options)
    client.queue("newsletter").put_many([{"to": f"reader{n}@example.org", "issue": 7} for n in range(240)])
    client.queue("newsletter").pause(7200)
    for n in range(12):
        client.queue("mail").put({"to": f"ada{n}@example.org", "text": "Your parcel is near"}, delay=600 * (n + 1))
    for n in range(9):
        client.queue("orders").put({"order": 100 + n, "do": "charge"}, lane=f"customer {n % 2}")
    client.limits.set("imports", concurrency=2)
    client.queue("imports").put_many([{"file": f"catalogue-{n}.csv"} for n in range(6)])
    split = Put("reports", {"do": "split", "year": 2030})
    parts = [Put("reports", {"do": "count", "city": city}, after=split) for city in CITIES[:4]]
    client.put_graph([split, *parts, Put("reports", {"do": "publish"}, after=parts, on_failure="bury")])
    client.schedules.set("nightly report", "0 3 * * *", "reports", {"do": "nightly"}, tz="Europe/Berlin")
    client.schedules.set("poll the bank", None, "orders", {"do": "poll"}, every=900)
    client.schedules.set("spring sale", "0 9 1 3 *", "newsletter", {"issue": "sale"})
    client.schedules.pause("spring sale")
    client.exchanges.declare("shop.events", "topic")
    client.exchanges.bind("mail", "shop.events", "order.paid")
    client.exchanges.bind("reports", "shop.events", "order.#")
    client.create_queue("returns", if_not_exists=True, dead_letter="", dead_letter_key="refused returns")
    client.create_queue("refused returns", if_not_exists=True)
    client.queue("returns").put_many([{"order": 40 + n, "do": "refund"} for n in range(3)])
    for task in client.queue("returns").take_many(2, 5):
        task.bury(error="PaymentError: the card has expired")
    with client.batch(Put("reports", {"do": "thank", "issue": 7}), name="issue 7") as letters:
        client.queue("newsletter").put_many(
            [{"to": f"friend{n}@example.org", "issue": 7} for n in range(30)], batch=letters
        )
    client.nodes.create("/config", {"currency": "EUR", "vat": 0.2})
    client.nodes.create("/config/smtp", {"host": "smtp.example.org"})


def remember(dsn: str) -> None:
    """A history of the last hour, as if the shop had sold all the time: a wave with noise, and a rush of images."""
    with psycopg.connect(dsn) as conn:
        conn.execute(
            "INSERT INTO pgqueue.history SELECT date_trunc('minute', now()) - n * interval '1 min', w.puts, w.puts,"
            " w.puts - w.puts / 40, 0, 0, w.puts / 40, 0, q.id, w.ready, w.ready, 4, 0, 2, 0, w.ready / 3.0, 'm'"
            "  FROM pgqueue.queue q, generate_series(1, 61) n, LATERAL ("
            "       SELECT (260 + 90 * sin(n / 9.0 + q.id) + 40 * random())::int,"
            "              greatest(0, (6 + 90 * exp(-power((n - 24 - q.id * 3) / 6.0, 2)) + 6 * random()))::int"
            "     ) w(puts, ready) WHERE q.name IN ('mail', 'images', 'exports')"
            " UNION ALL "
            "SELECT date_trunc('minute', now()) - n * interval '1 min', CASE n WHEN 30 THEN 240 ELSE 0 END, 0, 0, 0, 0,"
            " 0, 0, q.id, 240, 240, 0, 0, 0, 0, 60 * (30 - n), 'm' FROM pgqueue.queue q, generate_series(1, 30) n"
            " WHERE q.name = 'newsletter' ON CONFLICT DO NOTHING"
        )


@contextlib.contextmanager
def open_shop(dsn: str) -> Iterator[pgqueue.Client]:
    """A database with a shop in it, whose worker runs."""
    STOP.clear()
    with pgqueue.Client(dsn) as client, pgqueue.Client(dsn) as holder:
        register(client)
        fill(client)
        remember(dsn)
        charged = holder.queue("orders").take(5)
        files = holder.queue("imports").take_many(2, 5)
        lock = holder.try_lock("stock-taking")
        worker = pgqueue.Worker(client, concurrency=6, queues=["mail", "images", "exports"])
        thread = threading.Thread(target=worker.run, name="the shop's worker")
        thread.start()
        for city in CITIES[:2]:
            client.jobs["shop.export"].put(city)
        try:
            yield client
        finally:
            STOP.set()
            worker.stop()
            thread.join(30)
            for task in (charged, *files):
                if task is not None:
                    with contextlib.suppress(pgqueue.Error):
                        task.release()
            if lock is not None:
                lock.release()


def sell(client: pgqueue.Client, orders: range) -> None:
    """Put the tasks of some orders."""
    for order in orders:
        client.jobs["shop.send_receipt"].put(order, f"customer{order}@example.org")
        client.jobs["shop.resize"].put(order, 640)


if __name__ == "__main__":
    with open_shop(sys.argv[1]) as shop:
        for first in range(1, 10**9, 5):
            sell(shop, range(first, first + 5))
            time.sleep(0.2)
