"""The bookkeeping alone: which edges order two accesses, which do not, and what is said of a missing one."""

import random

import pytest

from rig.ledger import Ledger

NBYTES = 64


def edges(ledger):
    """(kind, step of the earlier access, step of the later one) of what is missing."""
    return [(edge.kind, edge.earlier.step, edge.later.step) for edge in ledger.missing]


def read_in(ledger, step, stream="main", start=0):
    ledger.step = step
    return ledger.enqueue_read(stream, start, NBYTES)


def nothing(ledger, read):
    pass


def settle(ledger, read):
    ledger.settled(read)


def pass_a_fence(ledger, read):
    ledger.passed(ledger.fence("main"))


def settle_a_later_read(ledger, read):
    ledger.settled(ledger.enqueue_read("main", 4096, NBYTES))


def pass_a_fence_of_a_stream_behind(ledger, read):
    ledger.order(ledger.fence("main"), stream="side")
    ledger.passed(ledger.fence("side"))


def put_a_fence_that_nobody_waits_for(ledger, read):
    ledger.fence("main")


def pass_a_fence_of_another_stream(ledger, read):
    ledger.enqueue_read("side", 4096, NBYTES)
    ledger.passed(ledger.fence("side"))


def order_another_stream(ledger, read):
    ledger.order(ledger.fence("main"), stream="side")


ORDERING = [settle, pass_a_fence, settle_a_later_read, pass_a_fence_of_a_stream_behind]
USELESS = [nothing, put_a_fence_that_nobody_waits_for, pass_a_fence_of_another_stream, order_another_stream]


@pytest.mark.parametrize("make_edge", ORDERING)
def test_a_host_write_behind_an_edge_is_ordered(make_edge):
    ledger = Ledger()
    make_edge(ledger, read_in(ledger, 1))
    ledger.step = 2
    ledger.host_write(0, NBYTES)
    ledger.free(0, NBYTES)
    assert edges(ledger) == []


@pytest.mark.parametrize("make_edge", USELESS)
@pytest.mark.parametrize(("later", "kind"), [("host_write", "slot_reuse"), ("free", "use_after_free")])
def test_a_host_write_or_a_free_without_an_edge_is_not(make_edge, later, kind):
    ledger = Ledger()
    make_edge(ledger, read_in(ledger, 1))
    ledger.step = 2
    getattr(ledger, later)(0, NBYTES)
    assert edges(ledger) == [(kind, 1, 2)]


def test_a_fence_in_front_of_the_read_orders_nothing():
    ledger = Ledger()
    token = ledger.fence("main")
    read_in(ledger, 1)
    ledger.passed(token)
    ledger.host_write(0, NBYTES)
    assert edges(ledger) == [("slot_reuse", 1, 1)]


@pytest.mark.parametrize(
    ("start", "nbytes", "meets"),
    [(0, 1000, False), (1000, 1, True), (1063, 1, True), (1064, 500, False), (0, 1 << 20, True), (1010, 0, False)],
)
def test_only_accesses_that_share_a_byte_meet(start, nbytes, meets):
    ledger = Ledger()
    read_in(ledger, 1, start=1000)
    ledger.host_write(start, nbytes)
    assert bool(ledger.missing) == meets


@pytest.mark.parametrize("granule", [1 << 18, 5 << 18])
def test_accesses_meet_across_any_border_of_memory(granule):
    ledger = Ledger()
    read_in(ledger, 1, start=granule - 1)
    ledger.host_write(granule + NBYTES - 2, 1)
    ledger.host_write(granule + NBYTES - 1, 1)
    assert edges(ledger) == [("slot_reuse", 1, 1)]


def test_a_twin_read_on_a_side_stream_needs_an_edge_from_the_copy_on_the_main_one():
    ledger = Ledger()
    ledger.step = 1
    ledger.enqueue_write("main", 0, NBYTES, what="copy")
    read_in(ledger, 2, "side")
    assert edges(ledger) == [("stale_alias", 1, 2)]
    ledger.order(ledger.fence("main"), stream="side")
    read_in(ledger, 3, "side")
    assert len(ledger.missing) == 1


def test_the_next_copy_to_a_twin_needs_an_edge_from_its_readers_on_other_streams():
    ledger = Ledger()
    read_in(ledger, 1, "main")
    read_in(ledger, 2, "side")
    ledger.step = 3
    ledger.enqueue_write("main", 0, NBYTES, what="copy")
    assert edges(ledger) == [("slot_reuse", 2, 3)]


def test_what_the_host_knows_to_be_over_is_over_for_what_it_launches_then():
    ledger = Ledger()
    ledger.settled(ledger.enqueue_write("main", 0, NBYTES))
    read_in(ledger, 1, "side")
    assert edges(ledger) == []


def test_two_reads_need_no_edge():
    ledger = Ledger()
    read_in(ledger, 1, "main")
    read_in(ledger, 1, "side")
    assert edges(ledger) == []


def test_memory_that_is_other_memory_now_is_forgotten():
    ledger = Ledger()
    read_in(ledger, 1)
    ledger.forget(0, NBYTES)
    ledger.host_write(0, NBYTES)
    assert edges(ledger) == []


def test_what_came_before_a_restart_is_of_no_matter():
    ledger = Ledger()
    read_in(ledger, 1)
    ledger.host_write(0, NBYTES)
    ledger.restart()
    ledger.host_write(0, NBYTES)
    assert edges(ledger) == []
    assert ledger.counts == {"events": 1}


def test_a_missing_edge_names_both_accesses_and_what_would_order_them():
    ledger = Ledger()
    ledger.step = 3
    ledger.enqueue_read("main", 0, NBYTES, slot=1)
    ledger.step = 5
    ledger.host_write(0, NBYTES)
    assert str(ledger.missing.pop()) == (
        "no fence between the read of step 3 on stream main and the write of step 5 into slot 1: a fence on stream "
        "main behind the read would order them, had the host waited for it before the write"
    )
    ledger.step = 4
    ledger.fence("main")
    ledger.free(0, NBYTES)
    assert str(ledger.missing.pop()).startswith(
        "no wait between the read of step 3 on stream main and the free of step 4 of slot 1: the fence of step 4 on "
        "stream main would order them, had the host waited for it"
    )
    ledger.enqueue_write("main", 0, NBYTES, what="copy")
    ledger.enqueue_read("side", 0, NBYTES)
    assert "the read of step 4 on stream side: a fence on stream main behind the copy" in str(ledger.missing.pop())


def test_reads_that_are_over_are_dropped():
    ledger = Ledger()
    most = 0
    for step in range(20_000):
        read = read_in(ledger, step, start=step * NBYTES)
        ledger.settled(read)
        most = max(most, ledger.num_queued)
    assert most < 2000
    ledger.sweep()
    assert ledger.num_queued == 0


def test_a_sweep_keeps_what_is_not_over():
    ledger = Ledger()
    read_in(ledger, 1)
    ledger.fence("main")
    ledger.sweep()
    ledger.host_write(0, NBYTES)
    assert str(ledger.missing[0]).startswith("no wait between the read of step 1")


@pytest.mark.parametrize("seed", range(40))
def test_it_agrees_with_a_search_for_a_path_of_edges(seed):
    rng, ledger, graph = random.Random(seed), Ledger(), Graph()
    reads, tokens, num_missing = [], [], 0
    for _ in range(120):
        stream, start = rng.choice(["main", "side", "third"]), 32 * rng.randrange(6)
        match rng.randrange(7):
            case 0 | 1:
                access = ledger.enqueue_read(stream, start, NBYTES)
                node = graph.launch(stream)
                reads.append((access, node))
                missing = graph.access(node, start, writes=False)
            case 2:
                ledger.enqueue_write(stream, start, NBYTES)
                missing = graph.access(graph.launch(stream), start, writes=True)
            case 3:
                ledger.host_write(start, NBYTES)
                missing = graph.access(graph.on_host(), start, writes=True, keep=False)
            case 4:
                tokens.append((ledger.fence(stream), graph.last.get(stream)))
                continue
            case 5:
                if reads and rng.random() < 0.3:
                    access, node = rng.choice(reads)
                    ledger.settled(access)
                    graph.join("host", node)
                continue
            case _:
                if tokens:
                    token, node = rng.choice(tokens)
                    if rng.random() < 0.5:
                        ledger.order(token, stream=stream)
                        graph.join(stream, node)
                    else:
                        ledger.passed(token)
                        graph.join("host", node)
                continue
        assert bool(ledger.missing) == missing
        num_missing += missing
        ledger.missing.clear()
    assert num_missing


class Graph:
    """The same in the plainest way: nodes, edges, and a search from each access for the earlier ones."""

    def __init__(self):
        self.before = []  # of each node
        self.last = {}  # node of each actor
        self.accesses = []

    def launch(self, stream):
        return self._node(stream, self.last.get("host"))

    def on_host(self):
        return self._node("host")

    def join(self, actor, node):
        self._node(actor, node)

    def access(self, node, start, *, writes, keep=True):
        reached, todo = set(), [node]
        while todo:
            for other in self.before[todo.pop()]:
                if other not in reached:
                    reached.add(other)
                    todo.append(other)
        missing = any(
            (writes or theirs) and abs(start - place) < NBYTES and other not in reached
            for other, place, theirs in self.accesses
        )
        if keep:
            self.accesses.append((node, start, writes))
        return missing

    def _node(self, actor, *more):
        self.before.append([node for node in (self.last.get(actor), *more) if node is not None])
        self.last[actor] = len(self.before) - 1
        return self.last[actor]
