"""Celery's beat, which ends whenever it is told to, also while it sends the sweep.

That of Celery 5.7 closes its connection to the broker within the handler of SIGTERM and SIGINT. Where the signal
arrives while it waits for an answer on that connection, what fails there takes the place of the `SystemExit` of the
handler, counts as a message that could not be sent, and beat goes on as before. Nothing has to be closed there: this
installation keeps no schedule in a file, and beat closes the connection when its loop ends.
"""

from types import FrameType

from celery import platforms
from celery.apps import beat
from celery.beat import Service


class Beat(beat.Beat):
    """What `celery -A agentstate beat` runs."""

    def install_sync_handler(self, service: Service) -> None:
        """End beat at once; and after the message that is being sent, where that keeps the exception for itself."""

        def end(signum: int, frame: FrameType | None) -> None:
            service.stop()
            raise SystemExit

        platforms.signals.update(SIGTERM=end, SIGINT=end)
