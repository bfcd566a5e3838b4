"""A decode loop with an engine's call pattern: requests arrive, prefill, decode and finish while the device works."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from rig.errors import UsageError
from rig.ops import Param
from rig.request_trace import read_trace
from rig.scenarios import _requests
from rig.scenarios._serving import Loop
from rig.timed import Bout

if TYPE_CHECKING:
    from rig.client import Client

SUMMARY = "an engine's decode loop over synthetic requests or a trace: steps per second and host time per step"
INVARIANTS = (
    "both sides serve the same requests: same rows, prompts, block ids and parameters in the same steps",
    "the host waits for nothing but the end of the step that is `max_concurrency` back",
)
CASES = {"steps": None, "host_step": None}
PARAMS: dict[str, Param] = {
    "gpu_ms": Param(0.0, "float", 0, 1000, help="the device's work in each step; left out on a CPU seat"),
    "max_requests": Param(256, "int", 1, 1 << 16, help="rows of every tensor"),
    "max_model_len": Param(16_384, "int", 16, 1 << 22, help="tokens in a row of the UVA-resident token table"),
    "num_groups": Param(4, "int", 1, 64, help="block tables, 16 tokens a block"),
    "max_concurrency": Param(2, "int", 2, 64, help="steps that the host may be ahead, and depth of all pools"),
    "num_steps": Param(40, "int", 1, 100_000, help="in one round of one side"),
    "rounds": Param(15, "int", 1, 10_000, help="of each side, in turn"),
    "warm_up_steps": Param(20, "int", 1, 100_000),
    "start_requests": Param(64, "int", 0, 1 << 16, help="there at the first step; synthetic only"),
    "arrivals_per_step": Param(0.3, "float", 0.001, 1000, help="on average; synthetic only"),
    "prompt_median": Param(512, "int", 1, 1 << 22, help="tokens, log-normal; synthetic only"),
    "output_median": Param(128, "int", 1, 1 << 22, help="tokens, log-normal; synthetic only"),
    "trace": Param("", "str", help="a CSV of arrival time, prompt tokens, output tokens, by an absolute path"),
    "trace_step_ms": Param(250.0, "float", 0.001, 1e9, help="how much of the trace one step stands for"),
}


def problem(name: str, value: Any) -> str | None:
    """What is wrong with a parameter's value that its limits do not say: a trace that cannot be read."""
    if name != "trace" or not value:
        return None
    try:
        read_trace(value)
    except UsageError as error:
        return str(error)
    return None


def bouts(params: Mapping[str, Any], *, seed: int, on_gpu: bool, own: bool) -> Iterator[Bout]:
    """One bout: the same steps for both sides."""
    plans = step_plans(params, seed=seed, num=params["warm_up_steps"] + params["rounds"] * params["num_steps"])
    yield Bout(name="engine_step", build=partial(_side, params=params, plans=plans))


def step_plans(params: Mapping[str, Any], *, seed: int, num: int) -> list[_requests.StepPlan]:
    """The first `num` steps, complete: what the engine's scheduler would have decided."""
    rng = np.random.default_rng(seed)
    if params["trace"]:
        requests = _requests.in_steps(read_trace(params["trace"]), step_ms=params["trace_step_ms"])
    else:
        requests = _requests.synthetic(params, rng)
    return list(islice(_requests.plans(requests, params, np.random.default_rng([seed, 1])), num))


def _side(client: Client, *, params: Mapping[str, Any], plans: list[_requests.StepPlan]) -> Loop:
    return Loop(client, params, plans)
