"""The table of orders."""

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    operations = (
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("item", models.CharField(max_length=100)),
                ("mailed_at", models.DateTimeField(editable=False, null=True)),
                ("packed_at", models.DateTimeField(editable=False, null=True)),
            ],
        ),
    )
