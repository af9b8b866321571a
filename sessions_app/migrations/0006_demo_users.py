import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    """Which accounts `manage.py up` made. Those of earlier versions are not known, and are left alone from now on."""

    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
        ("sessions_app", "0005_bulk_actions"),
    ]

    operations = [
        migrations.CreateModel(
            name="DemoUser",
            fields=[
                (
                    "user",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="+",
                        serialize=False,
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "password_digest",
                    models.CharField(
                        help_text="SHA-256 of the user's stored password as it was set last; another one was set by a person.",
                        max_length=64,
                    ),
                ),
            ],
            options={"default_permissions": ()},
        ),
    ]
