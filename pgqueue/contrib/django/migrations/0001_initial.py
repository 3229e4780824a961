"""The schema `pgqueue`; see operations.py."""

from django.db import migrations

from pgqueue.contrib.django.operations import Schema


class Migration(migrations.Migration):
    initial = True
    operations = (Schema("0001"),)
