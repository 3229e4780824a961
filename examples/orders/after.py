"""The application with pgqueue."""

from __future__ import annotations

import pgqueue
from pgqueue import Retry, Task

from . import shop

client = pgqueue.Client()
retry = Retry(attempts=shop.ATTEMPTS, delay=shop.PAUSE, factor=1, jitter=False, on=shop.BankDown)


@client.job("orders", retry=retry, keep_result=3600)
def charge(task: Task, order: int) -> shop.Charge:
    charged = shop.charge(order, task.attempts)
    receipt.put(order)
    return charged


@client.job("mail")
def receipt(order: int) -> None:
    shop.mail(f"receipt of order {order}")


@client.job("orders", keep_result=3600)
def report(task: Task) -> shop.Report:
    return shop.report([charge.result for charge in task.results()])


@client.cron(every=1, missed="none")
@client.job("mail")
def remind() -> None:
    shop.mail("reminder")


def day(orders: int) -> shop.Report:
    """Put this number of orders, and wait for their report."""
    charges = charge.put_many([(order,) for order in range(orders)])
    found: shop.Report = report.options(after=charges).put().result(timeout=100)
    return found
