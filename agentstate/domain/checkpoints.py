"""An agent's state in a file of its own, one per session: the only module of the domain that uses files.

A checkpoint is replaced as a whole or not at all: a reader finds the last one saved, also after a crash.
"""

import os
import tempfile
from pathlib import Path

from agentstate.domain.codec import UnreadableState, decode_state, encode_state
from agentstate.domain.state import AgentState, check_session_id


def save_checkpoint(state: AgentState, directory: str | os.PathLike[str]) -> Path:
    """Write the state to `directory`/`session_id`.json and return that path. The directory need not exist.

    When this returns, the checkpoint survives a power failure. If it raises, the previous one is still there.
    """
    path = _path(state.session_id, directory)
    data = encode_state(state).encode("utf-8", "surrogatepass")
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    _sync_directory(path.parent)
    return path


def load_checkpoint(session_id: str, directory: str | os.PathLike[str]) -> AgentState:
    """The state last saved.

    :raises FileNotFoundError: if none was saved: begin with `AgentState(session_id)`.
    :raises ValueError: for an invalid `session_id`.
    :raises UnreadableState: naming the file, if it is damaged, of a newer version, or another session's.
    """
    path = _path(session_id, directory)
    data = path.read_bytes()
    try:
        state = decode_state(data)
    except UnreadableState as error:
        raise UnreadableState(f"{path}: {error}") from error
    if state.session_id != session_id:
        raise UnreadableState(f"{path} holds the session {state.session_id}, not {session_id}.")
    return state


def _path(session_id: str, directory: str | os.PathLike[str]) -> Path:
    return Path(directory) / f"{check_session_id(session_id)}.json"


def _sync_directory(directory: Path) -> None:
    """Make the new name durable as well. Windows cannot sync directories."""
    if os.name == "nt":
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
