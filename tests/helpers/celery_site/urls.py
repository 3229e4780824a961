from django.db import connection
from django.http import HttpResponse
from django.urls import path

from .tasks import ship


def order(request, item):
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO ordered VALUES (%s)", [item])
    result = ship.delay(item)
    if "fail" in request.GET:
        raise RuntimeError("the request fails after it has sent its task")
    return HttpResponse(result.id)


urlpatterns = [path("order/<item>", order)]
