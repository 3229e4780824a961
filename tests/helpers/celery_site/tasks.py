from celery import shared_task
from django.db import connection


@shared_task
def ship(item):
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO shipped VALUES (%s)", [item])
    return f"{item} is shipped"
