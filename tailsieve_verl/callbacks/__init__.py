"""Callbacks: classes that watch a run and may ask for changes of the next step's split (docs/callbacks.md)."""

from tailsieve_verl.callbacks.base import Callback, RunInfo
from tailsieve_verl.callbacks.console import ConsoleLine
from tailsieve_verl.callbacks.early_warning import EarlyWarning
from tailsieve_verl.callbacks.jsonl import JsonlRecorder
from tailsieve_verl.callbacks.prometheus import PrometheusExporter

__all__ = ["Callback", "ConsoleLine", "EarlyWarning", "JsonlRecorder", "PrometheusExporter", "RunInfo"]
