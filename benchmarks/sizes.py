"""How much each part measures: the sizes of `make bench`, and the smallest with which every part still runs."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sizes:
    """
    rounds: how often everything is measured.
    steps: of a session, in the parts that run steps.
    databases: on which steps are measured.
    rivals: whether the other engines are measured too, which are installed the first time.
    sessions, longest: of the database on which pages are measured, and the steps of its longest session.
    requests: of each page in a round.
    in_flight: processes with how many sessions altogether.
    replies: for which each of these sessions asks its model.
    starts: sessions whose start is timed, one after the other.
    open_pages, running: pages that are open at once, and how many of them show running sessions.
    seconds: for which they are open.
    simulated: sessions in the simulation.
    """

    rounds: int = 3
    steps: tuple[int, ...] = (10, 100, 1000, 5000)
    databases: tuple[str, ...] = ("SQLite", "PostgreSQL")
    rivals: bool = True
    sessions: int = 1_000_000
    longest: int = 100_000
    requests: int = 20
    in_flight: tuple[tuple[int, int], ...] = ((1, 150), (4, 500))
    replies: int = 40
    starts: int = 100
    open_pages: int = 200
    running: int = 20
    seconds: int = 60
    simulated: int = 100_000


SMALLEST = Sizes(
    rounds=1,
    steps=(10,),
    sessions=60,
    longest=100,
    requests=2,
    in_flight=((1, 3), (2, 4)),
    replies=8,
    starts=5,
    open_pages=4,
    running=2,
    seconds=6,
    simulated=300,
)
