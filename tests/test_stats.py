import json

import numpy as np
import pytest

from rig.stats import Histogram

EDGES = [0, 1, 2, 127, 128, 129, 255, 256, 257, 511, 512, 2**31 - 1, 2**31, 2**53 - 1, 2**53 + 1, 2**62, 2**63 - 1]


@pytest.mark.parametrize("value", EDGES)
def test_quantile_is_within_one_bucket_of_the_value_and_never_below_it_by_more(value: int) -> None:
    histogram = Histogram()
    histogram.record(value)
    histogram.record(2**63 - 1)
    assert value <= histogram.quantile(0.5) <= value + value // 128


@pytest.mark.parametrize("value", EDGES)
def test_one_by_one_and_in_bulk_land_in_the_same_bucket(value: int) -> None:
    single, bulk = Histogram(), Histogram()
    single.record(value)
    bulk.record_many([value])
    assert single.to_dict() == bulk.to_dict()


@pytest.mark.parametrize("q", [0.0, 0.5, 0.9, 0.99, 1.0])
def test_quantiles_of_many_values_agree_with_numpy_within_a_bucket(q: float) -> None:
    values = np.random.default_rng(3).lognormal(9, 1.5, 20_000).astype(np.int64)
    histogram = Histogram()
    histogram.record_many(values)
    exact = int(np.quantile(values, q, method="inverted_cdf"))
    assert exact <= histogram.quantile(q) <= exact * (1 + 1 / 128)


def test_merging_parts_in_any_order_equals_recording_everything() -> None:
    values = np.random.default_rng(5).integers(0, 10**9, 3_000)
    whole, left, right = Histogram(), Histogram(), Histogram()
    whole.record_many(values)
    left.record_many(values[:10])
    right.record_many(values[10:])
    assert (
        Histogram().merge(left).merge(right).to_dict()
        == Histogram().merge(right).merge(left).to_dict()
        == whole.to_dict()
    )


def test_histogram_survives_json() -> None:
    histogram = Histogram()
    histogram.record_many(EDGES)
    again = Histogram.from_dict(json.loads(json.dumps(histogram.to_dict())))
    assert again.summary() == histogram.summary()


def test_empty_histogram_has_no_samples_and_zero_quantiles() -> None:
    assert Histogram().summary() | {"histogram": None} == {
        **{"n": 0, "p50_ns": 0, "p90_ns": 0, "p99_ns": 0, "max_ns": 0},
        "histogram": None,
    }


@pytest.mark.parametrize("values", [[-1], [5, -3]])
def test_negative_duration_is_refused(values: list[int]) -> None:
    with pytest.raises(ValueError, match="negative"):
        Histogram().record_many(values)
    with pytest.raises(ValueError, match="negative"):
        Histogram().record(min(values))
