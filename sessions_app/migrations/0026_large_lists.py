from django.db import migrations, models
from django.db.models import Q

from sessions_app.migrations import _title_trigrams


class Migration(migrations.Migration):
    dependencies = [("sessions_app", "0025_words_of_customers")]

    operations = [
        migrations.AddIndex(
            model_name="approval",
            index=models.Index(
                fields=["expires_at"],
                condition=Q(decision="", expires_at__isnull=False),
                name="approval_expiring",
            ),
        ),
        migrations.RunPython(_title_trigrams.estimate_well, _title_trigrams.estimate_as_usual),
    ]
