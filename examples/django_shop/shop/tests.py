"""Tests of the puts, the handler, the job and the admin of a project: `manage.py test`."""

from django.contrib.auth.models import User
from django.test import TestCase

from pgqueue.contrib.django.testing import queued, run_tasks

from .models import Order
from .tasks import pack


class OrderTests(TestCase):
    def test_an_order_is_confirmed_and_packed(self) -> None:
        answer = self.client.post("/orders", {"item": "tea"})
        assert [task.data for task in queued("mail")] == [answer.json()]
        run_tasks()
        page = self.client.get("/").json()
        assert page["orders"] == [{**answer.json(), "item": "tea", "mailed": True, "packed": True}]
        assert (page["to be mailed"], page["to be packed"]) == (0, 0)

    def test_without_money_there_is_nothing(self) -> None:
        self.client.raise_request_exception = False
        answer = self.client.post("/orders", {"item": "tea", "card": "declined"})
        assert answer.status_code == 500
        assert not Order.objects.exists()
        assert not queued("mail")

    def test_an_order_is_packed_once(self) -> None:
        order = Order.objects.create(item="tea")
        pack(order.pk)  # a job is a plain function too
        order.refresh_from_db()
        packed_at = order.packed_at
        pack(order.pk)
        order.refresh_from_db()
        assert packed_at is not None
        assert order.packed_at == packed_at


class AdminTests(TestCase):
    def test_the_admin_shows_the_tasks(self) -> None:
        self.client.force_login(User.objects.create_superuser("ada"))
        self.client.post("/orders", {"item": "tea"})
        self.assertContains(self.client.get("/admin/pgqueue/queue/"), "mail")
        self.assertContains(self.client.get("/admin/pgqueue/task/", {"queue": "mail"}), "ready")
        self.assertContains(self.client.get("/admin/shop/order/"), "tea")
