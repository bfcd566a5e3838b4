"""Readers: late, without keeping memory alive, and never touching what was freed."""

import numpy as np
import pytest
import torch

from rig.readers import AtOnce, Late
from staging.backends.sim import SimDevice

LATE = {"schedule": "late"}


def values(ticket, dtype=np.int32):
    return ticket.wait().view(dtype)


@pytest.fixture
def late():
    return Late(SimDevice(1, schedule="late"))


def test_a_late_reader_sees_what_is_written_after_its_launch(late):
    slot = torch.zeros(4, dtype=torch.int32)
    ticket = late.launch(late.hold(slot), None, stream="main")
    slot.fill_(7)
    assert values(ticket).tolist() == [7] * 4


def test_a_reader_at_once_does_not():
    slot, readers = torch.zeros(4, dtype=torch.int32), AtOnce()
    ticket = readers.launch(readers.hold(slot), None, stream="main")
    slot.fill_(7)
    assert values(ticket).tolist() == [0] * 4


def test_memory_that_its_owner_freed_is_lost_and_not_read(late):
    owner = [torch.arange(1000, dtype=torch.int32)]
    view = late.hold(owner[0][2:500])
    ticket = late.launch(view, None, stream="main")
    del view
    owner.clear()
    late.poll(41)
    assert ticket.wait() is None
    assert ticket.freed_in_step == 41
    assert not ticket.content_only


def test_memory_that_lives_on_is_read_through_a_dropped_view(late):
    owner = torch.arange(1000, dtype=torch.int32)
    view = late.hold(owner[2:500])
    ticket = late.launch(view, 5, stream="main")
    del view
    late.poll(41)
    assert values(ticket).tolist() == [2, 3, 4, 5, 6]


def test_the_view_itself_keeps_the_memory_until_it_is_dropped(late):
    owner = [torch.arange(8, dtype=torch.int32)]
    view = late.hold(owner[0])
    ticket = late.launch(view, None, stream="main")
    owner.clear()
    late.poll(1)
    assert values(ticket).tolist() == list(range(8))
    del view


@pytest.mark.parametrize(
    "make", [lambda: torch.arange(6, dtype=torch.int32), lambda: torch.from_numpy(np.arange(6, dtype=np.int32))]
)
def test_memory_that_only_the_caller_owns_is_kept_and_judged_by_content(late, make):
    ticket = late.launch(late.hold(make()), None, stream="main")
    late.poll(1)
    assert ticket.content_only
    assert values(ticket).tolist() == list(range(6))


def test_what_was_made_for_the_caller_is_kept_whoever_holds_it_at_launch(late):
    owner = [torch.arange(6, dtype=torch.int32)]
    ticket = late.launch(late.hold(owner[0], ours=True), None, stream="main")
    owner.clear()
    assert ticket.content_only
    assert values(ticket).tolist() == list(range(6))


def test_a_target_that_keeps_only_a_numpy_face_still_owns_the_memory(late):
    tensor = torch.arange(6, dtype=torch.int32)
    face = tensor.numpy()
    view = late.hold(tensor)
    del tensor
    ticket = late.launch(view, None, stream="main")
    assert not ticket.content_only
    face[:] = 9
    assert values(ticket).tolist() == [9] * 6


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.float32, torch.int64])
def test_strided_views_of_every_width_are_read_in_order(late, dtype):
    owner = (torch.arange(60) % 2).to(dtype).view(6, 10)
    ticket = late.launch(late.hold(owner[1:, ::3]), 4, stream="main")
    assert torch.equal(torch.frombuffer(bytearray(ticket.wait().tobytes()), dtype=dtype), owner[1:5, ::3].reshape(-1))


def test_a_reader_of_no_rows_sees_nothing(late):
    assert late.launch(late.hold(torch.zeros(4)[:0]), None, stream="main").wait().size == 0


def test_a_flush_runs_readers_of_resident_memory_only_unless_told(late):
    tables = [torch.zeros(2, dtype=torch.int32) for _ in range(2)]
    tickets = [late.launch(late.hold(t, resident=i == 0), None, stream="main") for i, t in enumerate(tables)]
    late.flush(everything=False)
    tables[0].fill_(1)
    tables[1].fill_(1)
    assert [values(t).tolist() for t in tickets] == [[0, 0], [1, 1]]
    again = late.launch(late.hold(tables[1]), None, stream="main")
    late.flush(everything=True)
    tables[1].fill_(2)
    assert values(again).tolist() == [1, 1]


def test_main_work_waits_for_side_readers_of_resident_memory(late):
    table = torch.zeros(2, dtype=torch.int32)
    ticket = late.launch(late.hold(table, resident=True), None, stream="side")
    late.sim.enqueue(lambda: table.fill_(5))
    late.sim.synchronize()
    assert values(ticket).tolist() == [0, 0]


def test_side_readers_wait_for_main_work(late):
    table = torch.zeros(2, dtype=torch.int32)
    late.sim.enqueue(lambda: table.fill_(5))
    assert values(late.launch(late.hold(table), None, stream="side")).tolist() == [5, 5]


def test_an_error_of_a_reader_surfaces_where_it_is_waited_for(late):
    owner = torch.zeros(4, dtype=torch.int32)
    view = late.hold(owner)
    view.itemsize = 3
    ticket = late.launch(view, None, stream="main")
    late.sim.synchronize()
    with pytest.raises(KeyError):
        ticket.wait()


@pytest.mark.parametrize("num_bytes", [0, 40, 1 << 20])
def test_memory_that_was_resized_under_a_reader_is_lost(late, num_bytes):
    owner = torch.zeros(1000, dtype=torch.int32)
    ticket = late.launch(late.hold(owner), None, stream="main")
    owner.untyped_storage().resize_(num_bytes)
    assert ticket.wait() is None
