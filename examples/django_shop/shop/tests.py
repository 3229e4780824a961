"""Tests of the puts and the handlers of a project: `manage.py test`."""

from django.test import TestCase

from pgqueue.contrib.django.testing import queued, run_tasks

from .models import Order


class OrderTests(TestCase):
    def test_an_order_is_confirmed(self) -> None:
        answer = self.client.post("/orders", {"item": "tea"})
        assert [task.data for task in queued("mail")] == [answer.json()]
        run_tasks()
        page = self.client.get("/").json()
        assert page["orders"] == [{"order": answer.json()["order"], "item": "tea", "mailed": True}]
        assert page["to be mailed"] == 0

    def test_without_money_there_is_nothing(self) -> None:
        self.client.raise_request_exception = False
        answer = self.client.post("/orders", {"item": "tea", "card": "declined"})
        assert answer.status_code == 500
        assert not Order.objects.exists()
        assert not queued("mail")
