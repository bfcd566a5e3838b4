"""Traces: what is read, and what is said of what cannot be."""

import pytest

from rig.errors import UsageError
from rig.request_trace import read_trace

HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def written(tmp_path, text):
    path = tmp_path / "trace.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def test_requests_come_in_the_order_of_their_arrival(tmp_path):
    lines = "2023-11-16 18:17:04.5000000,10,2\n2023-11-16 18:17:03.9799600,4808,1\n"
    first, second = read_trace(written(tmp_path, HEAD + lines))
    assert (first.num_prompt, first.num_output, second.num_prompt) == (4808, 1, 10)
    assert second.arrival_s - first.arrival_s == pytest.approx(0.52004)


@pytest.mark.parametrize(
    "text", ["0.5,3,4\n1,5,6\n", f"{HEAD}0.5,3,4\r\n1,5,6", f"\ufeff{HEAD}\n0.5,3,4,more\n\n1, 5 ,6\n"]
)
def test_header_empty_lines_and_further_columns_may_be_there(tmp_path, text):
    assert read_trace(written(tmp_path, text)) == [(0.5, 3, 4), (1.0, 5, 6)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"{HEAD}1,2,3\nsoon,2,3\n", ":3: column 1 (arrival time): found 'soon'; expected ISO 8601 or seconds"),
        ("soon,2,3\n", ":1: column 1 (arrival time): found 'soon'"),
        ("nan,2,3\n", ":1: column 1 (arrival time): found 'nan'"),
        (f"{HEAD}1,2\n", ":2: column 3 (output tokens) is missing; expected arrival time, prompt tokens"),
        (f"{HEAD}1,many,3\n", ":2: column 2 (prompt tokens): found 'many'; expected a whole number from 0"),
        (f"{HEAD}1,2,-3\n", ":2: column 3 (output tokens): found '-3'"),
        (f"{HEAD}1,2.5,3\n", ":2: column 2 (prompt tokens): found '2.5'"),
        (f"{HEAD}1,2,99999999\n", ":2: column 3 (output tokens): found '99999999'"),
        (f"{HEAD}1,2,\u00b2\n", ":2: column 3 (output tokens): found '\u00b2'"),
        (f'{HEAD}1,"2,3\n', ":2: not CSV: unexpected end of data"),
        (HEAD, ":1: no request in it"),
        ("", ":1: no request in it"),
        (b"\xff\xfe1", ": cannot be read (not UTF-8 text)"),
    ],
)
def test_a_bad_trace_is_refused_by_line_and_column(tmp_path, text, says):
    path = written(tmp_path, text)
    with pytest.raises(UsageError) as error:
        read_trace(path)
    assert str(error.value).startswith(f"{path}{says}")


def test_a_trace_that_is_not_there_says_so(tmp_path):
    with pytest.raises(UsageError, match=r"none.csv: cannot be read \(No such file"):
        read_trace(str(tmp_path / "none.csv"))
    with pytest.raises(UsageError, match="cannot be read"):
        read_trace(str(tmp_path))
