"""The pure core: numpy only, no I/O, no clock. Data in, verdicts out."""

from tailsieve_verl.core.accounting import launch_counts
from tailsieve_verl.core.bounds import makespan_lower_bound
from tailsieve_verl.core.controller import Controller, ControllerConfig
from tailsieve_verl.core.decode import DecodeCurve, finish_times, replica_time, replica_times
from tailsieve_verl.core.optimum import SplitOptimum, best_k_isolation, optimal_split
from tailsieve_verl.core.placement import (
    PLACEMENTS,
    Placement,
    SeerOracle,
    StreamRLOracle,
    TailSieve,
    UniformGroup,
    UniformOracle,
    VerlDefault,
)
from tailsieve_verl.core.tails import VarianceShares, scale_tail, tail_auc, variance_shares

__all__ = [
    "PLACEMENTS",
    "Controller",
    "ControllerConfig",
    "DecodeCurve",
    "Placement",
    "SeerOracle",
    "SplitOptimum",
    "StreamRLOracle",
    "TailSieve",
    "UniformGroup",
    "UniformOracle",
    "VarianceShares",
    "VerlDefault",
    "best_k_isolation",
    "finish_times",
    "launch_counts",
    "makespan_lower_bound",
    "optimal_split",
    "replica_time",
    "replica_times",
    "scale_tail",
    "tail_auc",
    "variance_shares",
]
