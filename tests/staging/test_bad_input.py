"""Every bad call names value and limit, or what to do; changes nothing; and the next good call works."""

from __future__ import annotations

import pytest
from bad_options import BAD_OPTIONS, BAD_SIZES
from bad_places import BAD_PLACES
from bad_states import BUSY, CLOSED, PICKLED
from bad_uses import BAD_USES
from bad_values import BAD_VALUES
from bench import Bench
from conftest import BACKENDS

CASES = [*BAD_VALUES, *BAD_PLACES, *BAD_OPTIONS, *BAD_SIZES, *BAD_USES, *BUSY, *PICKLED, *CLOSED]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_a_bad_call_says_why_changes_nothing_and_the_next_good_one_works(backend, case):
    _, call, error, *fragments = case
    bench = Bench(backend)
    before = bench.state()
    with pytest.raises(error) as caught:
        call(bench)
    for fragment in fragments:
        assert fragment in str(caught.value)
    assert before.items() <= bench.state().items()
    if not bench.manager.is_usable:  # closed: what was built lives on, what is new needs another one
        bench.close()
        bench = Bench(backend)
    bench.check_that_all_works()
    bench.close()


def test_no_case_is_there_twice():
    names = [case[0] for case in CASES]
    assert sorted(set(names)) == sorted(names)
