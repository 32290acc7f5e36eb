"""What forwards cost: measured once, kept, never falling with the rows; and what follows for a row."""

from __future__ import annotations

import json

import pytest

from outrider.drafters import ModelDrafter
from outrider.planning.costs import (
    LEAST_LEVEL,
    MOST_ROWS,
    REPEATS,
    SIZES,
    VerifyCost,
    fingerprint,
    level_cost,
    verify_cost,
)
from outrider.planning.timing import level_units
from toy import TableModel, random_laws


class Shaped(TableModel):
    """A toy with a shape, so that its costs can be kept."""

    config = ("layers", 2)


ALONE = [1, 2, 3, 4, 5, 6, 7, 8, 9, 17]
ONE_LOOK = REPEATS + 1
"""Forwards by which it is seen whether what is kept was measured on a busy machine."""


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
    assert [[rows for rows, _ in found.curves[size]] for size in (1, 2)] == [ALONE, [2, 3, 4, 6, 8, 10, 16]]
    assert all(list(curve) == sorted(curve) for curve in found.curves.values())
    again = model()
    assert verify_cost(again, slots=2) == found
    assert again.num_forwards <= ONE_LOOK
    assert len(list(kept.iterdir())) == 1


def test_more_slots_than_were_measured_are_measured(kept):
    verify_cost(model())
    more = model()
    assert list(verify_cost(more, slots=6).curves) == [1, 4, 6]
    assert more.num_forwards > 0
    fewer = model()
    assert list(verify_cost(fewer).curves) == [1, 4, 6]  # what is known beyond is not forgotten
    assert fewer.num_forwards <= ONE_LOOK


def test_another_shape_is_another_cost():
    verify_cost(model())
    other = model()
    other.config = ("layers", 3)
    assert fingerprint(other) != fingerprint(model())
    verify_cost(other)
    assert other.num_forwards > 0


DAMAGED = ("", "{", "[]", '{"1x1": "x"}', '{"1x1": -1}', '{"0x1": 1.0}', "null", '{"1x1": NaN}', '{"1": 1.0}')


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_file_is_measured_again(damage, kept):
    verify_cost(model())
    (path,) = kept.iterdir()
    path.write_text(damage)
    again = model()
    verify_cost(again)
    assert again.num_forwards > 0
    assert set(json.loads(path.read_text())) == {f"1x{rows}" for rows in ALONE}


def test_a_model_without_a_shape_and_a_folder_that_is_a_file_are_measured_every_time(kept, tmp_path, monkeypatch):
    shapeless = model(TableModel)
    verify_cost(shapeless)
    verify_cost(shapeless)
    assert not kept.exists()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "file"))
    assert verify_cost(model())(1) > 0


def test_a_short_context_and_many_slots_bound_what_is_measured():
    short = model()
    short.context_length = 3
    assert [rows for rows, _ in verify_cost(short).curves[1]] == [1, 2, 3]
    short.context_length = 10**6
    many = verify_cost(short, slots=1000).curves
    assert list(many) == list(SIZES)
    assert max(rows for curve in many.values() for rows, _ in curve) == MOST_ROWS


def test_between_and_beyond_the_measured_rows_costs_lie_on_straight_lines():
    cost = VerifyCost({1: ((1, 1.0), (2, 1.5), (4, 2.0))})
    assert [cost(rows) for rows in (1, 1.5, 2, 3, 4, 6)] == [1.0, 1.25, 1.5, 1.75, 2.0, 2.5]


BATCHES = VerifyCost({1: ((1, 1.0), (8, 1.7)), 4: ((4, 2.0), (32, 7.6))})


def test_between_the_measured_sizes_of_a_batch_costs_lie_on_straight_lines_at_as_many_rows_each():
    assert BATCHES(4, 4) == 2.0
    assert BATCHES(2, 2) == pytest.approx(1.0 + (2.0 - 1.0) / 3)
    assert BATCHES(16, 2) == pytest.approx(1.7 + (7.6 - 1.7) / 3)
    assert BATCHES(8, 8) == pytest.approx(2.8)  # as eight rows of four sequences


def test_a_row_costs_what_it_adds_to_a_plain_round_of_that_batch():
    assert BATCHES.per_row(1) == 0.1
    assert BATCHES.per_row(4) == 0.4
    assert VerifyCost({1: ((1, 1.0), (8, 1.0))}).per_row() == 0.0


def test_what_a_level_costs_is_measured_once_for_few_and_for_many_sequences(kept):
    asked = []

    def measured(sequences):
        asked.append(sequences)
        return 0.1 * sequences

    alone = level_cost(model(), "a head", 1, measured)
    assert (alone(1), alone(16), asked) == (0.1, 0.1, [1])
    many = level_cost(model(), "a head", 3, measured)
    assert [many(sequences) for sequences in (1, 2, 3, 99)] == pytest.approx([0.1, 0.2, 0.3, 0.3])
    assert asked == [1, 3]
    assert level_cost(model(), "a head", 3, measured) == many
    assert asked == [1, 3]
    level_cost(model(), "another head", 1, lambda sequences: 0.0)
    assert level_cost(model(), "another head", 1, measured)(1) == LEAST_LEVEL


def test_the_levels_of_a_real_drafter_are_timed_in_the_engine():
    target = model()
    drafter = ModelDrafter(model(), 2, capacity=64)
    assert level_units(target, drafter, 2, 3) > 0
    assert drafter.num_failed == 0


def test_what_was_measured_on_a_busy_machine_is_measured_again(kept):
    verify_cost(model())
    level_cost(model(), "a head", 1, lambda sequences: 0.3)
    (path,) = kept.iterdir()
    busy = {name: 1e5 * taken for name, taken in json.loads(path.read_text()).items()}
    path.write_text(json.dumps(busy))
    assert verify_cost(model())(1) < busy["1x1"] / 2
    assert level_cost(model(), "a head", 1, lambda sequences: 0.2)(1) == 0.2


def test_a_busy_machine_spoils_nothing_that_was_measured_before(kept):
    verify_cost(model())
    (path,) = kept.iterdir()
    quiet = {name: taken / 1000 for name, taken in json.loads(path.read_text()).items()}
    path.write_text(json.dumps(quiet))
    assert verify_cost(model())(1) == quiet["1x1"]
