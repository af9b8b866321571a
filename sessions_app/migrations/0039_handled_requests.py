import django.db.models.deletion
import django.utils.timezone
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('sessions_app', '0038_phase_of_ended'),
    ]

    operations = [
        migrations.CreateModel(
            name='HandledRequest',
            fields=[
                ('id', models.UUIDField(primary_key=True, serialize=False)),
                ('kind', models.CharField(help_text='The kind of the audit event of what was done.', max_length=30)),
                ('handled_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('session', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='handled_requests', to='sessions_app.session')),
            ],
        ),
        migrations.AlterField(
            model_name="session",
            name="line",
            field=models.UUIDField(
                blank=True,
                editable=False,
                help_text="The oldest of the sessions that forks connect, directly or through others; empty without a fork.",
                null=True,
            ),
        ),
    ]
