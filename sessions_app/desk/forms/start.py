"""Starting a session. The form asks for what the chosen agent can be given, as its worker has published it."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django import forms

from agentstate.names import WORKING_MEMORY_KEY
from sessions_app import actions
from sessions_app.access.errors import SentBefore
from sessions_app.access.masking import Mask
from sessions_app.access.roles import Actor
from sessions_app.desk.forms.fields import JsonObject, LongText
from sessions_app.desk.forms.once import FORM_ID, FormId, take_request_id
from sessions_app.desk.pages import arguments
from sessions_app.models import RegisteredAgent, Session

# The types of JSON schemas whose values are not typed as JSON.
_TYPED = ("string", "number", "integer", "boolean")


class StartForm(forms.Form):
    """
    ``started_before`` is the session that the same form has started, where it is sent again.

    :param typed: What was typed before, where the form is only drawn again for another agent.
    """

    started_before: UUID | None = None

    form_id = FormId()
    agent = forms.ChoiceField()
    message = LongText(
        widget=forms.Textarea(attrs={"rows": 4}), help_text="What the customer asks, in their words."
    )
    title = forms.CharField(
        required=False, max_length=200, help_text="If empty: the beginning of the message."
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

    def __init__(self, *args: Any, typed: Mapping[str, str] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.agents = Mask.configured().rows(RegisteredAgent.objects.all())
        startable = [agent for agent in self.agents if not agent.problem]
        field = self.fields["agent"]
        assert isinstance(field, forms.ChoiceField)
        field.choices = [(agent.key, agent.title) for agent in startable]
        self.typed: Mapping[str, str] = typed or self.data
        key = self["agent"].value()
        chosen = next((agent for agent in startable if agent.key == key), next(iter(startable), None))
        self.inputs: dict[str, Any] = chosen.inputs if chosen is not None else {}
        self.schema = {
            "properties": {
                value["name"]: {
                    "type": "string",
                    **value["schema"],
                    "title": _label(value),
                }
                for value in self.inputs.get("values", [])
                # The agent writes its own working memory; it can be given among the state values.
                if value["schema"] is not None and value["name"] != WORKING_MEMORY_KEY
            }
        }
        self.values = arguments.fields({}, self.schema, self.typed)
        if self.inputs.get("prompt"):
            self.fields["message"].required = False
            self.fields["message"].help_text += " Optional: this agent has a prompt of its own."

    def clean(self) -> dict[str, Any]:
        data = super().clean() or self.cleaned_data
        own = {field.input_name for field in self.values}
        typed = (name for name, value in self.typed.items() if name.startswith(arguments.PREFIX) and value)
        if others := sorted(name.removeprefix(arguments.PREFIX) for name in typed if name not in own):
            raise forms.ValidationError(
                f"The agent has no input {', '.join(others)}: the form showed another agent's inputs. "
                "This agent's own are below."
            )
        try:
            values = arguments.read(self.typed, {}, self.schema)
        except arguments.WrongValue as error:
            raise forms.ValidationError(str(error)) from None
        return {**data, "state": {**(data.get("state") or {}), **values} or None}

    def run(self, actor: Actor) -> Session:
        data = dict(self.cleaned_data)
        del data[FORM_ID]
        try:
            data["request_id"] = take_request_id(self, actor, "start")
        except SentBefore as error:
            self.started_before = error.session_id
            raise
        tags = [tag.strip() for tag in data.pop("tags").split(",") if tag.strip()]
        return actions.start(actor=actor, tags=tags, **data)


def _label(value: Mapping[str, Any]) -> str:
    """The title of a value, and what is to be known of it before it is typed."""
    schema = value["schema"]
    name = arguments.label(value["name"], {"properties": {value["name"]: schema}})
    is_json = bool(schema) and not schema.get("enum") and schema.get("type") not in _TYPED
    notes = [note for note, holds in (("optional", not value["required"]), ("JSON", is_json)) if holds]
    return f"{name} ({', '.join(notes)})" if notes else name
