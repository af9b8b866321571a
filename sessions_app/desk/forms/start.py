"""Starting a session."""

from typing import Any

from django import forms

from sessions_app import actions
from sessions_app.access.masking import Mask
from sessions_app.access.roles import Actor
from sessions_app.desk.forms.fields import JsonObject, LongText
from sessions_app.models import RegisteredAgent, Session


class StartForm(forms.Form):
    agent = forms.ChoiceField()
    message = LongText(
        widget=forms.Textarea(attrs={"rows": 4}), help_text="What the customer asks, in their words."
    )
    title = forms.CharField(
        required=False, max_length=200, help_text="The message's beginning, if left empty."
    )
    customer = forms.CharField(required=False, max_length=200)
    tags = forms.CharField(required=False, help_text="Separated by commas.")
    state = JsonObject(
        required=False, label="State values", help_text="A JSON object with values for the agent's state."
    )
    generation_kwargs = JsonObject(
        required=False,
        label="Generation options",
        help_text='A JSON object for the model, such as {"temperature": 0}.',
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.agents = Mask.configured().rows(RegisteredAgent.objects.all())
        field = self.fields["agent"]
        assert isinstance(field, forms.ChoiceField)
        field.choices = [(agent.key, agent.title) for agent in self.agents if not agent.problem]

    def run(self, actor: Actor) -> Session:
        data = dict(self.cleaned_data)
        tags = [tag.strip() for tag in data.pop("tags").split(",") if tag.strip()]
        return actions.start(actor=actor, tags=tags, **data)
