"""Counts what a program exchanges with PostgreSQL, by a proxy in front of the server that reads the server's answers.

So all contenders are counted alike, whatever library they use.
"""

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from tools.services import free_port

# Statements that are counted as none of their own.
_FRAME = ("BEGIN", "START", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE", "SET", "RESET")
_WRITES = ("INSERT", "UPDATE", "DELETE", "MERGE")
_WRITING_EXPRESSION = re.compile(rb"WITH \w+ AS \((INSERT|UPDATE|DELETE)\b")
# A message that prepares such a statement and names it; it is executed later, by its name.
_PREPARED = re.compile(rb"P.{4}(\w+)\0WITH \w+ AS \((?:INSERT|UPDATE|DELETE)\b", re.DOTALL)


@dataclass(slots=True)
class Counts:
    """
    round_trips: times at which the program has sent something after it had an answer, and waited for the next.
    commits: transactions that ended with something written, explicit ones and single statements alike.
    """

    round_trips: int = 0
    statements: int = 0
    commits: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, name: str) -> None:
        with self._lock:
            setattr(self, name, getattr(self, name) + 1)


@contextmanager
def counting(url: str) -> Iterator[tuple[str, Counts]]:
    """The address of a proxy in front of the database, unencrypted, and what passes through it."""
    parts = urlsplit(url)
    server = (parts.hostname or "127.0.0.1", parts.port or 5432)
    counts = Counts()
    with socket.create_server(("127.0.0.1", free_port())) as listening:
        threading.Thread(target=_accept, args=(listening, server, counts), daemon=True).start()
        host = f"{parts.username}@127.0.0.1:{listening.getsockname()[1]}"
        yield f"{parts.scheme}://{host}{parts.path}?sslmode=disable", counts
        # A thread that waits in `accept` is not woken by `close`.
        with suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)


def _accept(listening: socket.socket, server: tuple[str, int], counts: Counts) -> None:
    with suppress(OSError):
        while True:
            client, _ = listening.accept()
            _Connection(client, socket.create_connection(server), counts).start()


class _Connection:
    """One connection through the proxy: a thread for each direction."""

    def __init__(self, client: socket.socket, server: socket.socket, counts: Counts) -> None:
        self._client, self._server, self._counts = client, server, counts
        self._waits = False
        self._has_written = False
        # The names of prepared statements that write, as they are named when they are executed.
        self._writing: set[bytes] = set()
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def start(self) -> None:
        for work in (self._requests, self._answers):
            threading.Thread(target=work, daemon=True).start()

    def _requests(self) -> None:
        with suppress(OSError):
            while data := self._client.recv(1 << 16):
                # The answer to a statement with common table expressions does not say that they write.
                if prepared := _PREPARED.findall(data):
                    self._writing |= {b"\0" + name + b"\0" for name in prepared}
                else:
                    executed = any(name in data for name in self._writing)
                    self._has_written |= executed or bool(_WRITING_EXPRESSION.search(data))
                if not self._waits:
                    self._waits = True
                    self._counts.add("round_trips")
                self._server.sendall(data)
            self._server.shutdown(socket.SHUT_WR)

    def _answers(self) -> None:
        rest = b""
        with suppress(OSError), self._client, self._server:
            while data := self._server.recv(1 << 16):
                rest += data
                while len(rest) >= 5 and len(rest) > (length := int.from_bytes(rest[1:5])):
                    self._message(rest[:1], rest[5 : length + 1])
                    rest = rest[length + 1 :]
                self._waits = False
                self._client.sendall(data)

    def _message(self, kind: bytes, body: bytes) -> None:
        """CommandComplete names the statement; ReadyForQuery says whether a transaction is open."""
        if kind == b"C":
            tag = body.rstrip(b"\0").decode().split()[0]
            if tag not in _FRAME:
                self._counts.add("statements")
            self._has_written = tag != "ROLLBACK" and (self._has_written or tag in _WRITES)
        elif kind == b"Z" and body == b"I" and self._has_written:
            self._has_written = False
            self._counts.add("commits")
