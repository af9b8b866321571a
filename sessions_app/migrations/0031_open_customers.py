"""An index by which PostgreSQL finds a part of the name of a customer among the sessions that may be in the inbox."""

from django.db import migrations

from sessions_app.migrations import _title_trigrams


class Migration(migrations.Migration):
    dependencies = [("sessions_app", "0030_tag_indexes")]

    operations = [migrations.RunPython(_title_trigrams.create_of_open, _title_trigrams.drop_of_open)]
