"""Django's admin as somebody with a browser uses it, in this process."""

from __future__ import annotations

import html
import re
from typing import Any

from django.contrib.auth.models import Permission, User
from django.test import Client


class Browser:
    """Somebody who is logged in; a superuser, or staff with these permissions only."""

    def __init__(self, *permissions: str, root: str = "/admin/pgqueue/", **options: Any) -> None:
        name = "-".join(permissions) or "root"
        self.user = User.objects.create(username=name, is_staff=True, is_superuser=not permissions)
        self.user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
        self.http = Client(**options)
        self.http.force_login(self.user)
        self._root = root

    def page(self, path: str, status: int = 200) -> str:
        response = self.http.get(self._root + path)
        assert response.status_code == status, response
        return response.content.decode()

    def ids(self, path: str) -> list[int]:
        """The tasks that a list shows, in its order."""
        return [int(id) for id in re.findall(r'href="[^"]*/task/(\d+)/change/', self.page(path))]

    def act(self, path: str, action: str, *chosen: object, **more: Any) -> list[str]:
        """Tick rows of a list and run an action on them; what the page says then."""
        response = self.post(path, action, *chosen, **more)
        assert response.status_code == 302, response.content.decode()
        return self.told(response.headers["Location"])

    def post(self, path: str, action: str, *chosen: object, **more: Any) -> Any:
        """As act(), and stay at the answer."""
        return self.http.post(self._root + path, {"action": action, "_selected_action": chosen, **more})

    def told(self, address: str) -> list[str]:
        """The messages of a page."""
        text = self.http.get(address).content.decode()
        return [html.unescape(told) for told in re.findall(r'<li class="(?:success|warning|error)">(.*?)</li>', text)]
