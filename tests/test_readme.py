"""What README shows of testing an agent, and of waiting for a session's answer, works as it stands.

`tests/test_wheel.py` runs its other files.
"""

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from haystack.components.agents import Agent

from agentstate import ToolPolicy
from agentstate.journals import FileJournal, MemoryJournal
from sessions_app.models import Session
from tests import driving, sample_agents
from tests.driving import Desk
from tests.readme import write_examples
from tools import processes

MAIL = ("mail-7", "ann@example.com", "Where is my order?")


@pytest.mark.slow
def test_the_tests_of_an_agent_run_as_the_readme_shows_them(tmp_path: Path) -> None:
    write_examples(tmp_path)
    path = f"{processes.PROJECT}:{tmp_path}"
    env = processes.environment(PYTHONPATH=path, HAYSTACK_TELEMETRY_ENABLED="false")
    done = processes.run(
        (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_shop.py"), env, tmp_path
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr


@pytest.fixture
def answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, desk: Desk
) -> Iterator[Callable[[Callable[[], Agent], dict[str, ToolPolicy]], ModuleType]]:
    """`shop/answers.py`, whose waits let a worker run the session; the agent "shop" is the given one."""
    write_examples(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(driving, "KEY", "shop")

    def drive(seconds: float) -> None:
        desk.drive(Session.objects.get())

    async def drive_async(seconds: float) -> None:
        await sync_to_async(drive)(seconds)

    def load(build: Callable[[], Agent], policies: dict[str, ToolPolicy]) -> ModuleType:
        desk.agent(build, policies=policies)
        module = import_module("shop.answers")
        monkeypatch.setattr(module, "time", SimpleNamespace(sleep=drive))
        monkeypatch.setattr(module, "asyncio", SimpleNamespace(sleep=drive_async))
        return module

    yield load
    driving.unregister("shop")
    for name in [name for name in sys.modules if name == "shop" or name.startswith("shop.")]:
        del sys.modules[name]


@pytest.mark.django_db
def test_a_program_waits_for_the_answer_as_the_readme_shows(answers: Any) -> None:
    module = answers(sample_agents.plain_talk, {})
    answer = module.answer(*MAIL)
    assert answer == Session.objects.get().final_answer != ""
    assert async_to_sync(module.answer_async)(*MAIL) == answer
    assert Session.objects.count() == 1


@pytest.mark.django_db
def test_a_program_that_waits_is_told_that_a_person_has_to_decide(answers: Any) -> None:
    module = answers(sample_agents.refunds, {"refund": ToolPolicy(approval=True)})
    for wait in (module.answer, async_to_sync(module.answer_async)):
        with pytest.raises(RuntimeError, match="refund needs approval"):
            wait(*MAIL)


@pytest.mark.parametrize("journal", [MemoryJournal, FileJournal])
def test_a_journal_that_is_constructed_says_that_it_is_opened(journal: type[MemoryJournal]) -> None:
    with pytest.raises(TypeError, match=rf"{journal.__name__}\.open\("):
        journal()
