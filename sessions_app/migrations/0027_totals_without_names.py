from django.db import migrations

from sessions_app.models.totals import TotalsField


class Migration(migrations.Migration):
    """PostgreSQL writes the table anew. Totals that are stored already stay as they are: JSON with its names."""

    dependencies = [("sessions_app", "0026_large_lists")]

    operations = [
        migrations.AlterField(
            model_name="checkpoint", name="totals", field=TotalsField(blank=True, default=dict)
        ),
    ]
