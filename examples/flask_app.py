"""A Flask application that confirms each order by mail: no order without its mail, no mail without its order.

    flask --app examples.flask_app pgqueue migrate up     # at the top of the checkout; needs flask-sqlalchemy
    flask --app examples.flask_app create-tables
    flask --app examples.flask_app run                    # in one terminal
    flask --app examples.flask_app pgqueue worker         # in another, or in several; kill them at any time
    curl --json '{"to": "ada@example.org", "amount": 7}' http://127.0.0.1:5000/orders
    curl http://127.0.0.1:5000/orders/1
    flask --app examples.flask_app pgqueue stats

The order and the task to mail it are one transaction, and so are the mark "mailed" and the task's ack.
"""

from __future__ import annotations

import time
from typing import Any

from flask import Blueprint, Flask, Response, abort, current_app, request
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import pgqueue
from pgqueue.contrib.flask import PgQueue
from pgqueue.contrib.sqlalchemy import url

from .browsers import long_poll


class Base(DeclarativeBase):
    pass


db = SQLAlchemy(model_class=Base)
queues = PgQueue(db=db)
mail = queues.queue("mail")  # its puts are part of db.session's transaction
shop = Blueprint("shop", __name__)

LIMIT = 1000  # a larger amount is declined
LONG_POLL = 25.0  # seconds: below what proxies allow


class Order(db.Model):
    id: Mapped[int] = mapped_column(primary_key=True)
    to: Mapped[str]
    amount: Mapped[int]
    mailed: Mapped[bool] = mapped_column(default=False)


def create_app() -> Flask:
    app = Flask(__name__)
    app.config.update(SQLALCHEMY_DATABASE_URI=url(), MAIL_SECONDS=0.05)  # PGQUEUE_DSN names the database
    app.config.from_prefixed_env()  # FLASK_MAIL_SECONDS=1
    db.init_app(app)
    queues.init_app(app)
    app.register_blueprint(shop)
    app.cli.command("create-tables")(db.create_all)
    return app


@shop.post("/orders")
def place() -> tuple[dict[str, Any], int]:
    order = Order(to=request.json["to"], amount=request.json["amount"])
    db.session.add(order)
    db.session.flush()  # for its id
    mail.put({"order": order.id})
    if order.amount > LIMIT:
        abort(403)  # the session ends without a commit: there was no order, and there is no mail
    db.session.commit()
    return {"order": order.id}, 201


@shop.get("/orders/<int:id>")
def show(id: int) -> dict[str, Any]:
    order = db.get_or_404(Order, id)
    return {"to": order.to, "mailed": order.mailed}


@shop.get("/mailed")
def mailed() -> Response:
    """The next order that is mailed, by any process; or 204 if the browser should ask again."""
    return long_poll(queues.client, "mailed", LONG_POLL)


@queues.handler("mail")
def confirm(data: dict[str, Any], task: pgqueue.Task) -> None:
    """Runs in an app context of its own, as a request does."""
    order = db.session.get_one(Order, data["order"])
    time.sleep(current_app.config["MAIL_SECONDS"])  # stands for a mail server
    order.mailed = True
    task.ack(conn=db.session)
    queues.client.post("mailed", str(order.id), conn=db.session)
    db.session.commit()  # all three, or none of them
