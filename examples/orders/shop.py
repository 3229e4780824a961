"""The code that the two applications share: the bank, the mails, and the sum of a day."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeAlias

ATTEMPTS, PAUSE = 5, 0.2  # of a charge; seconds

Charge: TypeAlias = dict[str, int]  # order, cents, attempt
Report: TypeAlias = dict[str, int]  # orders, cents, retried


class BankDown(Exception):
    """The bank cannot be reached; try again."""


def charge(order: int, failed: int) -> Charge:
    """Charge an order. The bank is down in the first attempt of every hundredth order."""
    if order % 100 == 0 and failed == 0:
        raise BankDown(f"order {order}")
    return {"order": order, "cents": 990 + order, "attempt": failed + 1}


def report(charges: list[Charge]) -> Report:
    return {
        "orders": len(charges),
        "cents": sum(charge["cents"] for charge in charges),
        "retried": sum(charge["attempt"] > 1 for charge in charges),
    }


def mail(text: str) -> None:
    """Send a mail: append a line to the file SHOP_OUTBOX. Processes append their lines whole."""
    file = os.open(os.environ["SHOP_OUTBOX"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, f"{text}\n".encode())
    finally:
        os.close(file)


def outbox() -> list[str]:
    """The mails that were sent."""
    path = Path(os.environ["SHOP_OUTBOX"])
    return path.read_text().splitlines() if path.exists() else []
