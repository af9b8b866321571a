from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

from sessions_app.access.masking import Mask
from sessions_app.finding.search_masking import note_present
from sessions_app.history.causes_again import name_causes_again


def _name_causes_again(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """The keys of causes that were made of hidden values are made of what is shown, in sessions and in stored links.

    Does nothing where nothing is hidden. If the search index was made with another masking, `manage.py migrate` was
    called without the settings of the desk, which then says that `manage.py rebuild_search` is to be called.
    """
    note_present()
    if Mask.configured().hides_anything:
        name_causes_again(lambda name: apps.get_model("sessions_app", name))


class Migration(migrations.Migration):
    """The keys of the causes of failures hold nothing that is hidden."""

    dependencies = [("sessions_app", "0036_shown_names")]

    operations = [migrations.RunPython(_name_causes_again, migrations.RunPython.noop, elidable=True)]
