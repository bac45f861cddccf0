"""How a run's artifacts are dealt into batches."""

from __future__ import annotations

import configparser
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from include.nightlies.rules.order import ALONE, AT_LEAST, SHARE, TASKS_S, dealt, work_s
from include.nightlies.steps.plan import MAX_MAPPED
from tests.fakes.refused import refused

MAPPED = MAX_MAPPED
AIRFLOW_CFG = Path(__file__).parents[4] / "airflow.cfg"


def test_a_usual_night_has_a_batch_for_each_artifact() -> None:
    sizes = [10_000_000] * ALONE
    assert dealt(range(ALONE), sizes, MAPPED) == tuple((number,) for number in range(ALONE))


def test_fifteen_hundred_small_artifacts_make_few_batches() -> None:
    batches = dealt(range(1500), [1000] * 1500, MAPPED)
    assert len(batches) == AT_LEAST
    assert max(map(len, batches)) - min(map(len, batches)) <= 1


def test_no_night_has_more_batches_than_airflow_maps_over() -> None:
    airflow = configparser.ConfigParser(interpolation=None)
    airflow.read(AIRFLOW_CFG)
    sizes = [200_000_000] * 5000
    assert len(dealt(sizes, sizes, MAPPED)) <= airflow.getint("core", "max_map_length")


def test_starting_tasks_costs_a_small_share_of_a_long_night() -> None:
    sizes = [200_000_000] * 500
    batches = dealt(sizes, sizes, MAPPED)
    assert len(batches) * TASKS_S <= SHARE * sum(map(work_s, sizes)) + TASKS_S


def test_a_large_artifact_is_not_put_together_with_many_small_ones() -> None:
    sizes = [1000] * 50 + [50_000_000_000] + [1000] * 50
    batches = dealt(range(101), sizes, MAPPED)
    (with_large,) = [batch for batch in batches if 50 in batch]
    assert with_large[-1] == 50


@given(st.lists(st.one_of(st.none(), st.integers(0, 1 << 40)), max_size=400), st.integers(1, 200))
def test_every_item_is_in_one_batch_in_order_and_no_batch_is_empty(sizes: list[int | None], limit: int) -> None:
    batches = dealt(range(len(sizes)), sizes, limit)
    assert [one for batch in batches for one in batch] == list(range(len(sizes)))
    assert all(batches)
    assert len(batches) <= limit


def test_a_limit_below_one_is_refused() -> None:
    with refused(ValueError):
        dealt([1], [1], 0)
