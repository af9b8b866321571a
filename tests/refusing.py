"""A Redis that answers and refuses all writes."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from tools.services import wait_for


@contextmanager
def refusing_writes(server: redis.Redis, how: str) -> Iterator[None]:
    """The server takes no writes meanwhile.

    :param how: "a replica", "full" or "without a disk".
    """
    folder, name = server.config_get("dir")["dir"], server.config_get("dbfilename")["dbfilename"]
    in_the_way = Path(str(folder), str(name))
    if how == "a replica":
        server.replicaof("127.0.0.1", 1)
    elif how == "full":
        server.config_set("maxmemory", 1)
    else:
        in_the_way.mkdir()
        server.config_set("save", "3600 1000000")
        server.bgsave()
        wait_for(lambda: server.info("persistence")["rdb_last_bgsave_status"] == "err", "it to fail")
    try:
        yield
    finally:
        server.replicaof("NO", "ONE")
        server.config_set("maxmemory", 0)
        server.config_set("save", "")
        if in_the_way.is_dir():
            in_the_way.rmdir()
