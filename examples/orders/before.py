"""The application with Celery."""

from __future__ import annotations

from celery import Celery, chord

from . import shop

app = Celery("orders", broker="redis://", backend="redis://")  # CELERY_BROKER_URL and CELERY_RESULT_BACKEND win
app.conf.task_acks_late = True
app.conf.beat_schedule = {"remind": {"task": f"{__package__}.before.remind", "schedule": 1.0}}


@app.task(bind=True, autoretry_for=(shop.BankDown,), max_retries=shop.ATTEMPTS - 1, default_retry_delay=shop.PAUSE)
def charge(self, order):
    charged = shop.charge(order, self.request.retries)
    receipt.delay(order)
    return charged


@app.task(ignore_result=True)
def receipt(order):
    shop.mail(f"receipt of order {order}")


@app.task
def report(charges):
    return shop.report(charges)


@app.task(ignore_result=True)
def remind():
    shop.mail("reminder")


def day(orders: int) -> shop.Report:
    """Put this number of orders, and wait for their report."""
    return chord([charge.s(order) for order in range(orders)], report.s()).delay().get(timeout=100)
