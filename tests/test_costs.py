"""What forwards cost: measured once, kept, never falling with the rows; and what follows for a row."""

from __future__ import annotations

import json

import pytest

from outrider.planning.costs import FEW_ROWS, MOST_ROWS, VerifyCost, fingerprint, verify_cost
from toy import TableModel, random_laws


class Shaped(TableModel):
    """A toy with a shape, so that its costs can be kept."""

    config = ("layers", 2)


@pytest.fixture(autouse=True)
def kept(monkeypatch, tmp_path):
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "costs"


def model(kind=Shaped):
    return kind(5, order=2, law=random_laws(5, seed=1, sharpness=2))


def test_costs_are_measured_once_and_kept(kept):
    first = model()
    found = verify_cost(first, slots=2)
    assert first.num_forwards > 0
    assert found.rows == (1, 2, 3, 4, 5, 6, 7, 8, 9, 17)
    assert found.units[0] == 1
    assert list(found.units) == sorted(found.units)
    again = model()
    assert verify_cost(again, slots=2) == found
    assert again.num_forwards == 0
    assert len(list(kept.iterdir())) == 1


def test_more_slots_than_were_measured_are_measured(kept):
    verify_cost(model())
    more = model()
    assert verify_cost(more, slots=4).rows[-1] == 32
    assert more.num_forwards > 0
    fewer = model()
    assert verify_cost(fewer).rows[-1] == 32  # what is known beyond is not forgotten
    assert fewer.num_forwards == 0


def test_another_shape_is_another_cost():
    verify_cost(model())
    other = model()
    other.config = ("layers", 3)
    assert fingerprint(other) != fingerprint(model())
    verify_cost(other)
    assert other.num_forwards > 0


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"1": "x"}', '{"1": -1}', '{"0": 1.0}', "null", '{"1": NaN}'])
def test_a_damaged_file_is_measured_again(damage, kept):
    verify_cost(model())
    (path,) = kept.iterdir()
    path.write_text(damage)
    again = model()
    verify_cost(again)
    assert again.num_forwards > 0
    assert set(json.loads(path.read_text())) == set(map(str, FEW_ROWS))


def test_a_model_without_a_shape_and_a_folder_that_is_a_file_are_measured_every_time(kept, tmp_path, monkeypatch):
    shapeless = model(TableModel)
    verify_cost(shapeless)
    verify_cost(shapeless)
    assert not kept.exists()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "file"))
    assert verify_cost(model()).units[0] == 1


def test_a_short_context_and_many_slots_bound_what_is_measured():
    short = model()
    short.context_length = 3
    assert verify_cost(short).rows == (1, 2, 3)
    short.context_length = 10**6
    assert verify_cost(short, slots=1000).rows[-1] == MOST_ROWS


def test_between_and_beyond_the_measured_rows_costs_lie_on_straight_lines():
    cost = VerifyCost((1, 2, 4), (1.0, 1.5, 2.0))
    assert [cost(rows) for rows in (1, 1.5, 2, 3, 4, 6)] == [1.0, 1.25, 1.5, 1.75, 2.0, 2.5]


def test_a_row_costs_what_it_adds_to_a_plain_round_of_that_batch():
    linear = VerifyCost((1, 8, 64), (1.0, 1.7, 7.3))  # 0.9 + rows / 10
    assert linear.per_row(1) == 0.1
    assert linear.per_row(8) == pytest.approx((7.3 / 1.7 - 1) / 7, abs=0.01)
    assert VerifyCost((1, 8), (1.0, 1.0)).per_row() == 0.0
    assert linear.per_row(1) < linear.per_row(4) < linear.per_row(16)
