"""A callback that posts to a webhook when the split changes and when the run ends.

python examples/webhook/webhook.py              # rehearsed on the simulator, posting to a server on this machine
"""

from __future__ import annotations

import json
import logging
import queue
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, ClassVar

from tailsieve_verl.callbacks import Callback
from tailsieve_verl.callbacks.rehearse import rehearse
from tailsieve_verl.core.plan import Decision

logger = logging.getLogger(__name__)


class Webhook(Callback):
    """Posts JSON objects with ``event`` (``split`` or ``end``), ``step`` and what happened.

    A thread of its own sends them, so that a slow server does not hold up the run. What cannot be sent is dropped with
    a warning.

    Args:
        url: where to post.
        timeout_s: longest that a post may take; at the end of the run that long is waited for the last ones.
    """

    observer: ClassVar[bool] = True  # it sees the decision that is carried out, and asks for nothing

    def __init__(self, url: str, timeout_s: float = 5.0) -> None:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"url must begin with http:// or https://, got {url}")
        self.url, self.timeout_s = url, timeout_s
        self.events: queue.Queue[dict[str, Any] | None] = queue.Queue(maxsize=100)
        self.step = 0

    def on_run_start(self, info: object) -> None:
        self.sender = threading.Thread(target=self._send, name="webhook", daemon=True)
        self.sender.start()

    def on_decision(self, decision: Decision) -> None:
        self.step = decision.step
        if decision.switched:
            self._put({"event": "split", "q": decision.q, "m": decision.m, "reason": decision.reason})

    def on_run_end(self, failure: str | None) -> None:
        self._put({"event": "end", "failure": failure})
        self.events.put(None, timeout=self.timeout_s)
        self.sender.join(self.timeout_s)

    def _put(self, event: dict[str, Any]) -> None:
        try:
            self.events.put_nowait({"step": self.step, **event})
        except queue.Full:
            logger.warning("webhook: %s is too slow, an event is dropped", self.url)

    def _send(self) -> None:
        while (event := self.events.get()) is not None:
            body = json.dumps(event).encode()
            request = urllib.request.Request(self.url, body, {"Content-Type": "application/json"})
            try:
                urllib.request.urlopen(request, timeout=self.timeout_s).close()
            except OSError as error:
                logger.warning("webhook: %s did not take an event: %s", self.url, error)


class Receiver(BaseHTTPRequestHandler):
    """Prints what is posted."""

    def do_POST(self) -> None:
        print("posted:", self.rfile.read(int(self.headers["Content-Length"])).decode(), flush=True)
        self.send_response(204)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


def main(steps: int = 12) -> None:
    server = HTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        # A schedule, so that there is something to post.
        settings = {"policy": "fixed", "q": 4, "m": 1, "schedule": {5: [8, 2], 9: [0, 0]}}
        rehearse([Webhook(f"http://127.0.0.1:{server.server_port}/")], steps=steps, settings=settings, strict=True)
    finally:
        server.shutdown()
        server.server_close()


if __name__ == "__main__":
    main()
