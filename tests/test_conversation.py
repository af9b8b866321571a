"""A conversation is stored once, however hooks rewrite it, and read back as the model saw it."""

from collections.abc import Iterable
from copy import deepcopy

import pytest
from haystack.dataclasses import ChatMessage
from hypothesis import given
from hypothesis import strategies as st

from agentstate.durable.state.chat_messages import message_body, message_from
from agentstate.durable.state.conversation import Change, Context, Conversation

user, assistant = ChatMessage.from_user, ChatMessage.from_assistant


class Stored:
    """What a journal does with the changes: bodies by position, and the positions that the model sees."""

    def __init__(self) -> None:
        self.conversation = Conversation()
        self.position = 0
        self.messages: dict[int, ChatMessage] = {}
        self.context: list[int] = []
        self.unread: dict[int, ChatMessage] = {}

    def put(self, message: ChatMessage) -> int:
        self.position += 1
        self.messages[self.position] = message_from(message_body(message))
        return self.position

    def reply(self, message: ChatMessage) -> None:
        """Stored between two commits, as a model's reply is."""
        position = self.put(message)
        self.context.append(position)
        self.conversation.stored(message, position)

    def commit(self, live: list[ChatMessage], unread: Iterable[ChatMessage] = ()) -> Change:
        change = self.conversation.change(live)
        positions = [
            self.put(
                self.unread.pop(new.unread_id)
                if new.unread_id is not None and new.body is None
                else message_from(new.body or {})
            )
            for new in change.messages
        ]
        changed = [new.unread_id for new in change.messages if new.unread_id is not None]
        for unread_id in [*change.replaced_unread, *changed]:
            self.unread.pop(unread_id, None)
        if change.context is None:
            self.context += positions
        else:
            self.context = [positions[-place - 1] if place < 0 else place for place in change.context]
        read = [(self.put(message), message) for message in unread]
        self.context += [position for position, _ in read]
        self.conversation.committed(change, positions, read)
        live += [message for _, message in read]
        self.position += 1  # the checkpoint's own
        return change

    def seen(self) -> list[ChatMessage]:
        return [self.messages[position] for position in self.context]

    def restart(self) -> list[ChatMessage]:
        """Go on in another process."""
        live = self.seen()
        self.conversation = Conversation()
        self.conversation.start_from(Context(live, self.context))
        return live


def test_messages_are_stored_once_and_only_once() -> None:
    stored, live = Stored(), [user("hi")]
    assert len(stored.commit(live).messages) == 1
    live.append(assistant("hello"))
    stored.reply(live[-1])
    live.append(user("and?"))
    change = stored.commit(live)
    assert (len(change.messages), change.context) == (1, None)
    assert stored.commit(live).messages == []
    assert stored.seen() == live


def test_equal_messages_are_stored_as_two() -> None:
    stored, live = Stored(), [user("again")]
    stored.commit(live)
    live.append(user("again"))
    stored.commit(live)
    live.append(assistant("ok"))
    stored.reply(live[-1])
    live.append(assistant("ok"))
    change = stored.commit(live)
    assert (len(change.messages), change.context) == (1, None)
    assert stored.seen() == live
    assert len(set(stored.context)) == 4


def test_a_truncated_context_names_what_is_left_and_stores_only_what_is_new() -> None:
    stored, live = Stored(), [user(str(n)) for n in range(6)]
    stored.commit(live)
    live = [live[0], assistant("they counted"), *live[4:]]
    change = stored.commit(live)
    assert change.context == [1, -1, 5, 6]
    assert len(change.messages) == 1
    assert stored.seen() == live
    live.append(user("go on"))
    assert stored.commit(live).context is None


def test_an_equal_copy_of_a_stored_message_is_that_message() -> None:
    stored, live = Stored(), [user("a"), user("b"), user("c")]
    stored.commit(live)
    change = stored.commit([user("c"), user("a")])
    assert (change.messages, change.context) == ([], [3, 1])


def test_an_unread_message_is_read_also_where_an_equal_one_is_stored() -> None:
    stored = Stored()
    live = [user("yes")]
    stored.commit(live)
    again = user("yes")
    stored.unread[7] = again
    stored.conversation.from_unread(again, 7)
    live.append(again)
    change = stored.commit(live)
    assert [new.unread_id for new in change.messages] == [7]
    assert stored.unread == {}
    assert stored.commit(live).messages == []


def unread(stored: Stored, *texts: str) -> list[ChatMessage]:
    """Unread messages of these texts, with the ids 0, 1 and so on."""
    messages = [user(text) for text in texts]
    for number, message in enumerate(messages):
        stored.unread[number] = message
        stored.conversation.from_unread(message, number)
    return messages


def test_an_unread_message_that_a_hook_left_out_is_read_and_not_stored() -> None:
    stored = Stored()
    _, second = unread(stored, "one", "two")
    change = stored.commit([second])
    assert change.replaced_unread == (0,)
    assert stored.unread == {}
    assert stored.seen() == [second]


def test_a_copy_of_an_unread_message_is_that_message() -> None:
    stored = Stored()
    live = [user("yes")]
    stored.commit(live)
    live += unread(stored, "yes", "no")
    change = stored.commit(deepcopy(live))
    assert ([new.unread_id for new in change.messages], change.replaced_unread) == ([0, 1], ())
    assert change.context is None


def test_an_unread_message_that_a_hook_rewrote_is_read_and_only_what_it_became_is_stored() -> None:
    stored = Stored()
    unread(stored, "my number is 1234")
    change = stored.commit([user("my number is ****")])
    assert ([new.unread_id for new in change.messages], change.replaced_unread) == ([None], (0,))
    assert [message.text for message in stored.messages.values()] == ["my number is ****"]
    assert stored.unread == {}


def test_an_unread_message_that_a_hook_changed_in_place_is_stored_as_it_is_now() -> None:
    stored = Stored()
    [message] = unread(stored, "hi")
    message.meta["language"] = "en"
    change = stored.commit([message])
    assert [new.unread_id for new in change.messages] == [0]
    assert [stored.meta for stored in stored.seen()] == [{"language": "en"}]


texts = st.sampled_from(["a", "b", "c"])
operations = st.one_of(
    st.tuples(st.just("append"), texts),
    st.tuples(st.just("reply"), texts),
    st.tuples(st.just("fold"), texts),
    st.tuples(st.just("unread"), texts),
    st.tuples(st.just("drop"), st.integers(0, 9)),
    st.tuples(st.just("copy"), st.integers(0, 9)),
    st.tuples(st.just("move"), st.integers(0, 9)),
    st.tuples(st.just("rewrite"), st.integers(0, 9)),
    st.tuples(st.just("commit"), st.none()),
    st.tuples(st.just("restart"), st.none()),
)


@pytest.mark.slow
@given(st.lists(operations, max_size=30))
def test_whatever_hooks_do_to_it_what_is_read_back_is_what_the_model_saw(
    script: list[tuple[str, object]],
) -> None:
    stored: Stored = Stored()
    live: list[ChatMessage] = []
    dirty = False
    for number, (operation, value) in enumerate(script):
        at = value % len(live) if isinstance(value, int) and live else None
        match operation:
            case "append":
                live.append(user(str(value)))
            case "reply":
                # The step's checkpoint goes before it.
                stored.commit(live)
                live.append(assistant(str(value)))
                stored.reply(live[-1])
            case "unread":
                message = user(str(value))
                stored.unread[number] = message
                stored.conversation.from_unread(message, number)
                live.append(message)
            case "fold":
                stored.commit(live, [user(str(value))])
            case "drop" if at is not None:
                del live[at]
            case "copy" if at is not None:
                live.insert(0, message_from(message_body(live[at])))
            case "move" if at is not None:
                live.append(live.pop(at))
            case "rewrite" if at is not None:
                live[at] = user(f"{live[at].text}!")
            case "commit":
                stored.commit(live)
            case "restart":
                stored.commit(live)
                live = stored.restart()
        dirty = operation not in ("reply", "fold", "commit", "restart")
    if dirty:
        stored.commit(live)
    assert stored.seen() == live
    assert stored.unread.keys() <= {
        number for number, (operation, _) in enumerate(script) if operation == "unread"
    }
