from django.db import migrations, models


class Migration(migrations.Migration):
    """A bulk act becomes a bulk action; its kind is the key of any action that may be done in bulk."""

    dependencies = [("sessions_app", "0004_side_replies")]

    operations = [
        migrations.RemoveConstraint(model_name="bulkitem", name="bulk_item_once"),
        migrations.RemoveIndex(model_name="bulkitem", name="bulk_item_todo"),
        migrations.RenameModel(old_name="BulkAct", new_name="BulkAction"),
        migrations.RenameField(model_name="bulkitem", old_name="act", new_name="bulk_action"),
        migrations.AlterField(
            model_name="bulkaction",
            name="kind",
            field=models.CharField(
                help_text="The key of the action in `sessions_app.action_list`.", max_length=30
            ),
        ),
        migrations.AddIndex(
            model_name="bulkitem",
            index=models.Index(fields=["bulk_action", "outcome"], name="bulk_item_todo"),
        ),
        migrations.AddConstraint(
            model_name="bulkitem",
            constraint=models.UniqueConstraint(fields=["bulk_action", "session"], name="bulk_item_once"),
        ),
    ]
