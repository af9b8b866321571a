"""Indexes by which PostgreSQL finds a part of a title or of a customer's name."""

from django.db import migrations

from sessions_app.migrations import _title_trigrams


class Migration(migrations.Migration):
    dependencies = [("sessions_app", "0016_failure_causes")]

    operations = [migrations.RunPython(_title_trigrams.create, _title_trigrams.drop)]
