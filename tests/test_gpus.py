"""What nvidia-smi says of a GPU's memory, or that it says nothing."""

from pathlib import Path

import pytest

from rig import gpus


@pytest.mark.parametrize(
    ("script", "used"),
    [
        ('[ "$2" = GPU-1 ] && echo " 1234"', 1234),
        ("echo '[N/A]'", None),
        ("echo 5; exit 6", None),
        ("exec sleep 600", None),
        (None, None),
    ],
)
def test_used_memory_is_a_number_or_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, used: int | None
) -> None:
    if script is not None:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin" if script else str(tmp_path))
    assert gpus.used_mib("GPU-1", timeout_s=0.5 if script == "exec sleep 600" else 20) == used
