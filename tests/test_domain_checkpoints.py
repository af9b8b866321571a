"""One file per session, replaced as a whole or not at all, and never outside its directory."""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentstate.domain import (
    AgentState,
    ToolCall,
    UnreadableState,
    encode_state,
    load_checkpoint,
    save_checkpoint,
)

UNSAFE = ["../escaped", "..", ".", "", "/tmp/escaped", "a/b", "a\\b", "a\0b", ".hidden", "a\n"]


def state(session_id: str = "s-1") -> AgentState:
    call = ToolCall("c1", "look", {"n": [1]}, {"found": "ü"}, None, 1.5)
    return AgentState.from_user_input("hello", session_id).to_executing().record_observation("look", call)


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    path = save_checkpoint(state(), tmp_path / "not" / "there yet")
    assert path == tmp_path / "not" / "there yet" / "s-1.json"
    saved = state()
    save_checkpoint(saved, tmp_path)
    assert load_checkpoint("s-1", tmp_path) == saved
    assert load_checkpoint("s-1", str(tmp_path)) == saved


def test_a_missing_checkpoint_is_an_error_that_names_the_file_and_makes_none(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(FileNotFoundError, match=r"s-1\.json"):
            load_checkpoint("s-1", folder)
    assert list(tmp_path.iterdir()) == []
    fresh = AgentState("s-1")
    assert (fresh.session_id, fresh.phase, fresh.history) == ("s-1", "idle", ())


def test_the_last_save_counts_and_leaves_nothing_else_behind(tmp_path: Path) -> None:
    save_checkpoint(state(), tmp_path)
    last = state().to_reflecting().to_done("hi")
    save_checkpoint(last, tmp_path)
    save_checkpoint(state("s-2"), tmp_path)
    assert load_checkpoint("s-1", tmp_path) == last
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s-1.json", "s-2.json"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
def test_only_the_owner_may_read_it(tmp_path: Path) -> None:
    assert stat.S_IMODE(save_checkpoint(state(), tmp_path).stat().st_mode) == 0o600


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_save_that_fails_leaves_the_previous_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    before = state()
    save_checkpoint(before, tmp_path)

    def full_disk(*_: Any) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, step, full_disk)
        with pytest.raises(OSError, match="No space left"):
            save_checkpoint(before.to_reflecting(), tmp_path)
    assert load_checkpoint("s-1", tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == ["s-1.json"]


def test_it_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []

    def seen(step: str) -> Callable[..., Any]:
        real = getattr(os, step)

        def spy(*args: Any) -> Any:
            if step == "fsync":
                kind = "directory" if stat.S_ISDIR(os.fstat(args[0]).st_mode) else "file"
                steps.append(f"fsync {kind} of {os.fstat(args[0]).st_size and 'some'} bytes")
            else:
                steps.append(step)
                assert Path(args[0]).read_text() == encode_state(saved)
                assert Path(args[0]).parent == Path(args[1]).parent
            return real(*args)

        return spy

    saved = state()
    monkeypatch.setattr(os, "fsync", seen("fsync"))
    monkeypatch.setattr(os, "replace", seen("replace"))
    save_checkpoint(saved, tmp_path)
    assert [step.split(" of ")[0] for step in steps] == ["fsync file", "replace", "fsync directory"]
    assert steps[0] == "fsync file of some bytes"


@pytest.mark.parametrize("session_id", UNSAFE)
def test_an_id_that_is_not_a_safe_file_name_is_refused(tmp_path: Path, session_id: str) -> None:
    folder = tmp_path / "inside"
    folder.mkdir()
    (tmp_path / "escaped.json").write_text(encode_state(state("escaped")))
    with pytest.raises(ValueError, match="is not a session id"):
        load_checkpoint(session_id, folder)
    forged = state()
    object.__setattr__(forged, "session_id", session_id)
    with pytest.raises(ValueError, match="is not a session id"):
        save_checkpoint(forged, folder)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("text", ["", "{", '{"format": "agentstate", "version": 99, "state": {}}'])
def test_a_damaged_file_is_named_and_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "s-1.json"
    path.write_text(text)
    with pytest.raises(UnreadableState, match=r"s-1\.json: "):
        load_checkpoint("s-1", tmp_path)
    assert path.read_text() == text


def test_another_sessions_file_is_refused(tmp_path: Path) -> None:
    save_checkpoint(state("s-2"), tmp_path).rename(tmp_path / "s-1.json")
    with pytest.raises(UnreadableState, match="holds the session s-2, not s-1"):
        load_checkpoint("s-1", tmp_path)
