"""What the model and the State get if the type of a tool's result cannot be stored.

Such a result is stored as its text or its plain data. What the tool's `outputs_to_string` makes of the live object is
recorded with it, so that the model sees what it would see of a plain agent, also when the call is replayed. The State
gets the stored form, since it has to be stored there too.
"""

import functools
import json
from collections.abc import Callable, Mapping
from typing import Any

from haystack.tools import Tool

from agentstate.durable import run_context
from agentstate.durable.failures import describe
from agentstate.durable.run_context import RunContext
from agentstate.durable.state.encoding import clean_text, decode, encode_result
from agentstate.durable.state.types import OwnText
from agentstate.names import OUTPUTS_TAG, TYPE_TAG

Json = Any
Handler = Callable[[Any], Any]
_OUTPUTS = "outputs_to_string"
# The key of the only output, where a tool does not name several.
_ONLY = ""


class OutputHandlerFailed(Exception):
    """A tool's output handler failed when the call ended: it is not called again."""


def attach(tool: Tool) -> None:
    """Let the tool's output handlers return what is on record for a value that `deliver` has delivered.

    Haystack takes the handlers from the tool when it has the result. They are replaced in what it takes, and not on the
    tool, which is the user's.
    """
    kind = next((kind for kind in type(tool).__mro__ if _OUTPUTS in vars(kind)), None)
    if kind is not None and tool.outputs_to_string and not isinstance(vars(kind)[_OUTPUTS], _Outputs):
        setattr(kind, _OUTPUTS, _Outputs(vars(kind)[_OUTPUTS]))


class _Outputs:
    """The `outputs_to_string` of the tools of a class: that of the tool, but where a durable run has delivered values.

    :param of_class: What the class has in this attribute: the default of a field, or a property or slot.
    """

    def __init__(self, of_class: Any) -> None:
        self._of_class = of_class

    def __get__(self, tool: Tool | None, kind: type | None = None) -> Any:
        if tool is None:
            return self._of_class.__get__(None, kind) if self._is_computed else self._of_class
        if self._is_computed:
            outputs = self._of_class.__get__(tool, kind)
        else:
            outputs = vars(tool).get(_OUTPUTS, self._of_class)
        run = run_context.current() if outputs else None
        return _with_recorded(run, outputs) if run is not None and run.delivered else outputs

    def __set__(self, tool: Tool, value: Any) -> None:
        if self._is_computed:
            self._of_class.__set__(tool, value)
        else:
            vars(tool)[_OUTPUTS] = value

    def __delete__(self, tool: Tool) -> None:
        if self._is_computed:
            self._of_class.__delete__(tool)
        else:
            del vars(tool)[_OUTPUTS]

    @property
    def _is_computed(self) -> bool:
        return hasattr(self._of_class, "__get__")


def _with_recorded(run: RunContext, outputs: dict[str, Any]) -> dict[str, Any]:
    configs = {
        key: {**config, "handler": _recorded_or_called(run, config["handler"], key)}
        if config.get("handler") is not None
        else config
        for key, config in _by_key(outputs).items()
    }
    return configs.get(_ONLY, configs)


def encode_outputs(tool: Tool, result: Any) -> tuple[Json, bool]:
    """The result as it is stored, and whether anything of it was lost. If so, the tool's handlers are called here."""
    data, lossy = encode_result(result)
    if not lossy:
        return data, False
    outputs = {key: _output(config, result) for key, config in _configs(tool).items()}
    if outputs == {_ONLY: {"text": _as_text(decode(data))}}:
        return data, True
    return {TYPE_TAG: OUTPUTS_TAG, "value": data, "outputs": outputs}, True


def encode_shown(tool: Tool, shown: Any) -> Json:
    """The stored form of which a replay makes the message that the model was shown, for a tool with one output."""
    data, _ = encode_result(shown)
    config = _configs(tool)[_ONLY]
    if isinstance(shown, str) and config.get("handler") is None:
        return data
    output = {"value": data, **({"text": shown} if isinstance(shown, str) else {})}
    return {TYPE_TAG: OUTPUTS_TAG, "value": data, "outputs": {_ONLY: output}}


def has_several(tool: Tool) -> bool:
    return _ONLY not in _configs(tool)


def deliver(run: RunContext, tool: Tool, data: Json) -> Any:
    """The value for Haystack to take as the tool's result, from its stored form."""
    value = decode(data)
    if not isinstance(data, dict) or data.get(TYPE_TAG) != OUTPUTS_TAG:
        return value
    outputs: dict[str, dict[str, Json]] = data["outputs"]
    configs = _configs(tool)
    sources = {config.get("source") for config in configs.values()}
    state_sources = {config.get("source") for config in (tool.outputs_to_state or {}).values()}
    if not isinstance(value, dict) or (sources == {None} and not state_sources):
        return _delivered(run, value, configs, outputs)
    for source in sources - {None}:
        if source in value:
            of_source = {key: config for key, config in configs.items() if config.get("source") == source}
            is_in_state = not state_sources.isdisjoint({source, None})
            value[source] = _delivered(run, value[source], of_source, outputs, keep=is_in_state)
    if None in sources:
        run.delivered[id(value)] = (value, outputs)
    return value


def _delivered(
    run: RunContext,
    value: Any,
    configs: Mapping[str, Mapping[str, Any]],
    outputs: dict[str, dict[str, Json]],
    keep: bool = False,
) -> Any:
    """The value, or its text where nothing but the message needs it."""
    texts = [outputs[key]["text"] for key in configs if "text" in outputs.get(key, {})]
    if isinstance(value, str):
        value = OwnText(value)
    if texts and not keep:
        value = OwnText(texts[0])
    run.delivered[id(value)] = (value, outputs)
    return value


def _configs(tool: Tool) -> dict[str, dict[str, Any]]:
    """The configurations of the tool's outputs, by their key."""
    return _by_key(tool.outputs_to_string or {})


def _by_key(outputs: dict[str, Any]) -> dict[str, dict[str, Any]]:
    if not outputs or any(name in outputs for name in ("source", "handler", "raw_result")):
        return {_ONLY: outputs}
    return outputs


def _output(config: Mapping[str, Any], result: Any) -> dict[str, Json]:
    """What the model gets of the result: as text, or as what the handler returned, or that the handler failed."""
    source, handler = config.get("source"), config.get("handler")
    value = result.get(source) if source is not None and isinstance(result, dict) else result
    if handler is None:
        return {} if config.get("raw_result") else {"text": _as_text(value)}
    try:
        return {"value": encode_result(handler(value))[0], "text": _as_text(value)}
    except Exception as error:  # Haystack then shows the model the value's text, or ends the run
        return {"error": clean_text(describe(error)), "text": _as_text(value)}


def _recorded_or_called(run: RunContext, handler: Handler, key: str) -> Handler:
    @functools.wraps(handler)
    def output(value: Any) -> Any:
        delivered = run.delivered.get(id(value))
        recorded = delivered[1].get(key, {}) if delivered is not None and delivered[0] is value else {}
        if "error" in recorded:
            raise OutputHandlerFailed(recorded["error"])
        return decode(recorded["value"]) if "value" in recorded else handler(value)

    return output


def _as_text(value: Any) -> str:
    """As Haystack shows the model a result that has no handler."""
    if isinstance(value, str):
        # Of an enum that is a text too, the model sees the text, and not what `str` makes of the member.
        return clean_text(str.__str__(value))
    try:
        return clean_text(json.dumps(_with_dicts(value), ensure_ascii=False))
    except Exception:  # a value's own code may fail in any way
        try:
            return clean_text(str(value))
        except Exception:
            return f"<{type(value).__module__}.{type(value).__qualname__}>"


def _with_dicts(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_dicts(item) for item in value]
    if isinstance(value, dict):
        return {key: _with_dicts(item) for key, item in value.items()}
    as_dict = getattr(value, "to_dict", None)
    return _with_dicts(as_dict()) if as_dict else value
