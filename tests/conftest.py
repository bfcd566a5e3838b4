"""On a machine with a GPU, CPU seats and CUDA share the process of the tests, which they never do in a run."""

import pytest
import torch

if torch.cuda.is_available():
    pass  # compiled, before a CPU seat asks for Triton's interpreter


@pytest.fixture(autouse=torch.cuda.is_available())
def _memory_for_cuda(monkeypatch):
    """A CPU seat's bound on memory would keep CUDA from starting in the same process."""
    monkeypatch.setattr("rig.headroom._free_nbytes", lambda: None)
