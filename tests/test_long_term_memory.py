"""What an agent remembers in one session it recalls in later ones, and a call that runs again adds nothing."""

import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from haystack import component
from haystack.components.agents import Agent
from haystack.dataclasses import ChatMessage, ToolCall

from agentstate import DurableAgent, agent
from agentstate.domain.words import MOST_CHARACTERS, nearest_by_words, words_of
from agentstate.durable.agent import make_durable
from agentstate.durable.embedding import Embedder, embedder_of, nearest_by_meaning, stored_vector
from agentstate.durable.long_term import LongTermMemory, current, entry_key, using
from agentstate.durable.long_term_tools import long_term_tools, recall, remember
from agentstate.durable.policy import ToolPolicy
from agentstate.durable.registry import registry
from agentstate.journals import MemoryFile, MemoryJournal, SessionFolder
from agentstate.journals.file import FileStore
from agentstate.journals.long_term import MemoryFileError
from agentstate.journals.store import Store
from agentstate.journals.valkey import ValkeySessions, ValkeyStore
from tests import sample_agents
from tests.driving import unregister
from tests.dying import Died

KEY = "remembering"
TEXTS = ["She wants e-mails, no calls.", "Her car is a blue Polo.", "She pays each invoice in time."]


@component
class Topics:
    """An embedder with two meanings: contact and cars. It fails for a text about neither."""

    def __init__(self, model: str = "topics") -> None:
        self.model = model

    @component.output_types(embedding=list[float])
    def run(self, text: str) -> dict[str, list[float]]:
        lower = text.lower()
        contact = float(sum(word in lower for word in ("mail", "call", "reach", "phone")))
        cars = float(sum(word in lower for word in ("car", "polo", "vehicle")))
        return {"embedding": [contact, cars]}


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    unregister(KEY)
    sample_agents.effects.clear()


def learner() -> Agent:
    """Remembers one fact, and answers."""
    calls = [ToolCall("remember", {"text": TEXTS[0]}, id="r")]
    return Agent(chat_generator=sample_agents.scripted(calls, "Noted."), tools=long_term_tools())


def asker() -> Agent:
    calls = [ToolCall("recall", {"query": "Does she like calls?"}, id="q")]
    return Agent(chat_generator=sample_agents.scripted(calls, "As she likes."), tools=long_term_tools())


def results(session: DurableAgent) -> list[str]:
    messages = session.history()
    return [str(result.result) for message in messages for result in message.tool_call_results]


def test_words_are_lower_case_letters_and_digits_without_accents() -> None:
    assert words_of("Über CLM-1042, naïve_text") == ["uber", "clm", "1042", "naive", "text"]


def test_of_scripts_without_spaces_each_two_characters_are_a_word_and_so_is_the_last_one() -> None:
    assert words_of("她想要邮件,好") == ["她想", "想要", "要邮", "邮件", "件", "好"]
    assert words_of("订单CLM42号") == ["订单", "单", "clm42", "号"]


@pytest.mark.parametrize("query", ["邮件", "她喜欢邮件吗", "要", "件"])
def test_texts_without_spaces_are_found_by_a_part_of_them(query: str) -> None:
    assert nearest_by_words(
        query, ["她想要邮件,不要电话。".replace("不要电话", "谢谢"), "她的车是蓝色的。"], 5
    ) == [0]


def test_the_words_are_those_of_the_first_characters_also_where_these_stand_for_many_others() -> None:
    assert sum(map(len, words_of("\ufdfa" * MOST_CHARACTERS))) <= MOST_CHARACTERS


@pytest.mark.parametrize(
    "query, best",
    [
        ("Which car does she have?", [1, 0, 2]),
        ("invoices", [2]),
        ("E-MAIL", [0]),
        ("bicycle", []),
        ("", []),
    ],
)
def test_texts_are_found_by_the_words_they_share_with_the_query_rare_words_first(
    query: str, best: list[int]
) -> None:
    assert nearest_by_words(query, TEXTS, 5) == best


def test_what_one_session_remembers_the_next_recalls(tmp_path: Path) -> None:
    memory = MemoryFile(tmp_path / "anna.jsonl")
    DurableAgent(learner(), tmp_path / "first.jsonl", memory=memory).run("hi")
    later = DurableAgent(asker(), tmp_path / "second.jsonl", memory=MemoryFile(tmp_path / "anna.jsonl"))
    later.run("hi")
    [result] = results(later)
    assert result.endswith(": She wants e-mails, no calls.")
    [line] = (tmp_path / "anna.jsonl").read_text().splitlines()
    entry = json.loads(line)
    assert entry["text"] == TEXTS[0]
    assert entry["call"].startswith("first-")


def test_a_call_that_was_killed_after_it_stored_stores_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = MemoryFile(tmp_path / "anna.jsonl")
    real = MemoryFile.remember

    def dies(self: MemoryFile, text: str, *, call: str) -> None:
        real(self, text, call=call)
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(MemoryFile, "remember", dies)
        with pytest.raises(Died):
            DurableAgent(learner(), tmp_path / "first.jsonl", memory=memory).run("hi")
    again = DurableAgent(learner(), tmp_path / "first.jsonl", memory=memory)
    assert again.run("hi").text == "Noted."
    assert len((tmp_path / "anna.jsonl").read_text().splitlines()) == 1
    assert results(again) == ["Remembered."]


@pytest.mark.parametrize("left", ["key", "nothing but what is needed"])
def test_an_entry_that_is_erased_before_its_call_runs_again_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    path = tmp_path / "anna.jsonl"
    real = MemoryFile.remember

    def dies(self: MemoryFile, text: str, *, call: str) -> None:
        real(self, text, call=call)
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(MemoryFile, "remember", dies)
        with pytest.raises(Died):
            DurableAgent(learner(), tmp_path / "first.jsonl", memory=MemoryFile(path)).run("hi")
    entry = json.loads(path.read_text())
    del entry["text"]
    path.write_text(json.dumps({"key": entry["key"]} if left == "key" else entry) + "\n")
    again = DurableAgent(learner(), tmp_path / "first.jsonl", memory=MemoryFile(path))
    assert again.run("hi").text == "Noted."
    assert TEXTS[0] not in path.read_text()
    assert MemoryFile(path).recall(TEXTS[0], limit=5) == []


@pytest.mark.parametrize("begun", [b'{"key": "half', b'{"text": "K\xc3'])
def test_a_line_that_a_killed_process_began_hides_no_other(tmp_path: Path, begun: bytes) -> None:
    path = tmp_path / "anna.jsonl"
    memory = MemoryFile(path)
    memory.remember(TEXTS[0], call="a")
    path.write_bytes(path.read_bytes() + begun)
    memory.remember(TEXTS[1], call="b")
    assert [entry.text for entry in memory.recall("she her car mails", limit=5)] == [TEXTS[1], TEXTS[0]]


@pytest.mark.parametrize(
    "line, wrong",
    [
        ("[1]", "it is not an object of JSON"),
        ('"She likes tea."', "it is not an object of JSON"),
        ("{}", "it has neither a 'text' nor 'discarded'"),
        ('{"text": "She likes tea."}', "its 'key' is missing"),
        ('{"key": "k", "call": "c", "learned_at": "2026-01-01", "text": 7}', "its 'text' is not a text"),
        (
            '{"key": "k", "call": "c", "learned_at": "yesterday", "text": "She likes tea."}',
            "its 'learned_at' is not a time of ISO 8601",
        ),
        ('{"discarded": ["c"]}', "its 'session' is missing"),
        (
            '{"key": "k", "call": "c", "learned_at": "2026-01-01", "text": "Tea.", "discarded": []}',
            "its 'session' is missing",
        ),
        ('{"session": "s", "discarded": "c"}', "its 'discarded' is not a list of texts"),
        ('{"session": "s", "discarded": [["c"]]}', "its 'discarded' is not a list of texts"),
    ],
)
def test_a_line_that_was_edited_into_something_else_is_named_with_what_is_wrong(
    tmp_path: Path, line: str, wrong: str
) -> None:
    path = tmp_path / "anna.jsonl"
    memory = MemoryFile(path)
    memory.remember(TEXTS[0], call="a")
    path.write_text(f"{path.read_text()}\n{line}\n")
    before = path.read_text()
    uses: list[Callable[[], object]] = [
        lambda: memory.recall("tea", limit=5),
        lambda: memory.remember(TEXTS[1], call="b"),
        lambda: memory.discard("s", ["c"]),
        lambda: DurableAgent(learner(), tmp_path / "first.jsonl", memory=memory).run("hi"),
    ]
    for use in uses:
        with pytest.raises(MemoryFileError) as refused:
            use()
        assert str(refused.value).startswith(f"{path}, line 3: {wrong}. Correct the line, or delete it")
    assert path.read_text() == before


@pytest.mark.parametrize("separator", ["\n", "\u0085", "\u2028", "\u2029"])
def test_a_text_with_any_separator_of_lines_is_remembered_once(tmp_path: Path, separator: str) -> None:
    memory = MemoryFile(tmp_path / "anna.jsonl")
    text = f"She likes tea.{separator}She dislikes coffee."
    for _ in range(2):
        memory.remember(text, call="a")
    assert [entry.text for entry in memory.recall("tea", limit=5)] == [text]
    assert (tmp_path / "anna.jsonl").read_bytes().count(b"\n") == 1


def test_one_call_may_learn_several_texts_each_once() -> None:
    memory = MemoryFile()
    for text in (TEXTS[0], TEXTS[1], TEXTS[0]):
        memory.remember(text, call="a")
    assert len(memory.recall("she her", limit=5)) == 2
    assert entry_key("a", TEXTS[0]) != entry_key("b", TEXTS[0])


def test_with_an_embedder_entries_are_found_by_meaning() -> None:
    memory = MemoryFile(embedder=Topics())
    for place, text in enumerate(TEXTS):
        memory.remember(text, call=str(place))
    assert [entry.text for entry in memory.recall("How can I reach her?", limit=5)] == [TEXTS[0]]
    # The embedder has no vector for this query, so it is compared by words.
    assert [entry.text for entry in memory.recall("invoice", limit=5)] == [TEXTS[2]]


def test_vectors_of_different_length_are_not_compared() -> None:
    near, far = stored_vector([3.0, 4.0]), stored_vector([1.0, 0.0, 0.0])
    assert nearest_by_meaning(near, [far, None, near, stored_vector([-3.0, -4.0])], 5) == [2]


def test_embedders_with_another_model_have_another_name_and_equal_ones_the_same() -> None:
    assert Embedder(Topics()).name == Embedder(Topics()).name
    assert Embedder(Topics()).name != Embedder(Topics("other")).name


def test_an_embedder_that_cannot_be_built_or_fails_leaves_the_words() -> None:
    def fails() -> Any:
        raise RuntimeError("no model here")

    agent(KEY, embedder=fails)(learner)
    assert embedder_of(registry.get(KEY)) is None
    unregister(KEY)
    agent(KEY, embedder=Topics)(learner)
    embedder = embedder_of(registry.get(KEY))
    assert embedder is not None
    assert embedder_of(registry.get(KEY)) is embedder
    assert embedder.embed("weather") is None
    assert embedder.embed("a car") == stored_vector([0.0, 1.0])


def test_the_tools_count_as_idempotent_without_being_declared() -> None:
    policies = make_durable(learner()).policies
    assert policies == {
        "remember": ToolPolicy(idempotent=True),
        "recall": ToolPolicy(idempotent=True),
    }


def test_the_tools_say_why_nothing_is_stored_or_found() -> None:
    assert remember.invoke(text="x") == "There is no long-term memory here."
    assert recall.invoke(query="x") == "There is no long-term memory here."
    memory: LongTermMemory = MemoryFile()
    with using(memory):
        assert current() is memory
        assert remember.invoke(text="  ") == "There is nothing to remember: the text is empty."
        assert (
            remember.invoke(text="x" * 2001)
            == "Not remembered: the text has 2001 characters, and at most 2000 are allowed."
        )
        assert recall.invoke(query="x") == "Nothing is remembered about this."
        assert remember.invoke(text="She has a car") == "Remembered."
        assert recall.invoke(query="car").endswith(": She has a car")
    assert current() is None


# Going back


@pytest.fixture(params=["memory", "folder", pytest.param("valkey", marks=pytest.mark.redis)])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """Where the first session is kept, to be given to each `DurableAgent` of a test."""
    if request.param == "folder":
        yield SessionFolder(tmp_path / "sessions").path("first")
    elif request.param == "valkey":
        with warnings.catch_warnings(action="ignore"):  # this server keeps nothing on disk, as it says
            sessions = ValkeySessions(request.getfixturevalue("redis_url"))
        with sessions.client:
            yield sessions.session("first")
    else:
        yield MemoryJournal.open(session_id="first")


def recalled(memory: MemoryFile) -> list[str]:
    """What a later session recalls."""
    later = DurableAgent(asker(), MemoryJournal.open(), memory=memory)
    later.run("hi")
    return results(later)


def quiet() -> dict[str, Any]:
    """Changes with which the learner does not ask to remember anything."""
    return {"messages": [ChatMessage.from_user("hi"), ChatMessage.from_assistant("Not yet.")]}


def test_what_was_remembered_on_a_history_that_was_discarded_is_not_recalled(
    journal: Any, tmp_path: Path
) -> None:
    memory = MemoryFile(tmp_path / "anna.jsonl")
    first = DurableAgent(learner(), journal, memory=memory)
    first.run("hi")
    assert len(recalled(memory)[0].splitlines()) == 1
    assert first.resume(at=first.checkpoints()[0], changes=quiet()).text == "Noted."
    assert recalled(memory) == ["Nothing is remembered about this."]
    # In another turn it learns the same again, by a call of the current history.
    DurableAgent(learner(), journal, memory=memory).run("hi")
    assert recalled(MemoryFile(tmp_path / "anna.jsonl"))[0].endswith(": She wants e-mails, no calls.")


def store_of(journal: Any) -> type[Store]:
    if isinstance(journal, MemoryJournal):
        return Store
    return FileStore if isinstance(journal, Path) else ValkeyStore


@pytest.mark.parametrize("committed", [False, True])
def test_a_script_that_is_killed_while_it_goes_back_offers_what_the_history_shows(
    journal: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    memory = MemoryFile(tmp_path / "anna.jsonl")
    DurableAgent(learner(), journal, memory=memory).run("hi")
    kind = store_of(journal)
    write = kind.write

    def dies(self: Store, record: dict[str, Any]) -> None:
        if "back_to" not in record:
            return write(self, record)
        if committed:
            write(self, record)
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(kind, "write", dies)
        first = DurableAgent(learner(), journal, memory=memory)
        with pytest.raises(Died):
            first.resume(at=first.checkpoints()[0], changes=quiet())
    assert recalled(memory) == ["Nothing is remembered about this."]
    outcome = DurableAgent(learner(), journal, memory=memory).resume()
    assert outcome.text == "Noted."
    shown = recalled(memory)[0]
    assert shown == "Nothing is remembered about this." if committed else shown.endswith("e-mails, no calls.")


def test_a_memory_that_cannot_be_told_what_was_discarded_is_refused() -> None:
    class Notebook:
        def remember(self, text: str, *, call: str) -> None: ...

        def recall(self, query: str, *, limit: int) -> list[Any]:
            return []

    with pytest.raises(TypeError, match=r"A Notebook is not a memory .* needs remember, recall and discard"):
        DurableAgent(learner(), MemoryJournal.open(), memory=Notebook())  # type: ignore[arg-type]
