"""The tables in which words are looked up."""

from django.db import migrations

from sessions_app.migrations import _search_tables


class Migration(migrations.Migration):
    dependencies = [("sessions_app", "0001_initial")]

    operations = [migrations.RunPython(_search_tables.create, _search_tables.drop)]
