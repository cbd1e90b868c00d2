"""The run's metrics for Prometheus: the names of docs/metrics.md as gauges on a port of the trainer's node.

bias/mean               tailsieve_bias_mean
idle_fraction/tail      tailsieve_idle_fraction{pool="tail"}
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from tailsieve_verl.callbacks.base import Callback, RunInfo

POOLS = ("tail", "bulk")


class PrometheusExporter(Callback):
    """Serves ``/metrics`` while the run goes on; values are those of the last finished step.

    Args:
        port: to listen on; 0 takes a free one, which the log names.
        host: address to listen on. The default is for this machine alone; ``0.0.0.0`` opens it to the network.

    Raises:
        ValueError: a port out of range, or prometheus_client is not installed.
    """

    observer: ClassVar[bool] = True

    def __init__(self, port: int = 9464, host: str = "127.0.0.1") -> None:
        if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port < 65_536:
            raise ValueError(f"port must be a whole number from 0 to 65535, got {port!r}")
        try:
            import prometheus_client
        except ImportError:
            raise ValueError("prometheus_client is not installed; pip install prometheus_client") from None
        self._library: Any = prometheus_client
        self._asked, self._host = port, host
        self._registry = prometheus_client.CollectorRegistry()  # of its own: ray fills the default one
        self._gauges: dict[str, Any] = {}
        self._server: Any = None
        self.port: int | None = None

    def on_run_start(self, info: RunInfo) -> None:
        self._server, _ = self._library.start_http_server(self._asked, addr=self._host, registry=self._registry)
        self.port = self._server.server_port
        print(f"[tailsieve] Prometheus metrics at http://{self._host}:{self.port}/metrics", flush=True)
        self._set("prompt_groups", info.n_groups)
        self._set("replicas", info.replicas)

    def on_step_end(self, step: int, metrics: Mapping[str, float]) -> None:
        self._set("step", step)
        for name, value in metrics.items():
            if not name.startswith("timing_s/"):  # verl's own, many and changing
                self._set(name, value)

    def on_run_end(self, failure: str | None) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def _set(self, name: str, value: float) -> None:
        base, _, pool = name.rpartition("/")
        labels = {"pool": pool} if pool in POOLS else {}
        key = "tailsieve_" + re.sub(r"\W", "_", base if labels else name)
        if key not in self._gauges:
            self._gauges[key] = self._library.Gauge(key, f"tailsieve/{name}", list(labels), registry=self._registry)
        gauge = self._gauges[key]
        (gauge.labels(**labels) if labels else gauge).set(float(value))
