"""`outrider.certify` on toys: right engines are certified, wrong ones are not, and it says why."""

from __future__ import annotations

import json

import numpy as np
import pytest

from certify_runs import PENALTIES, PROMPTS, TARGET, V, certificate, engine_of
from engine_runs import RepeatsTheLastToken, toy_engine
from outrider import certify
from outrider.certifying import Certificate, Check, Tier
from outrider.certifying.certificate import DOES_NOT_SAY, DOES_SAY
from outrider.certifying.page import as_page
from outrider.certifying.planted import FAULTS
from outrider.certifying.run import Effort, _Job
from outrider.certifying.running import Wish
from outrider.certifying.stream import ALPHA, FALSE_ALARMS, NUM_TESTS
from outrider.errors import InvalidOption
from outrider.options import Sampling
from outrider.planning.pace import AutoPace
from outrider.rules.typical import TypicalRule

RIGHT = [
    ("model", "block", Sampling(temperature=1.0)),
    ("model", "token", Sampling(temperature=0.7)),
    ("model", "coupled", Sampling(temperature=1.0, top_p=0.9)),
    ("model", "point-mass", PENALTIES),
    ("hybrid-trees", "traversal", Sampling(temperature=1.0)),
    ("without-trees", "recursive", Sampling(temperature=1.0)),
    ("repeats", "auto", Sampling(temperature=1.0)),
    ("none", "auto", Sampling(temperature=1.0)),
    ("model", "auto", Sampling(temperature=0.0)),
]


@pytest.mark.parametrize(("drafter", "rule", "sampling"), RIGHT, ids=lambda value: str(value)[:20])
def test_a_right_engine_is_certified(drafter: str, rule: str, sampling: Sampling) -> None:
    found = certificate(engine_of(drafter, rule), sampling)
    assert found.faults == ()
    assert found.certified
    for tier in found.tiers:
        assert tier.not_applicable or (tier.checks and tier.controls)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str) -> None:
    sampling = PENALTIES if "penalty" in fault else Sampling(temperature=1.0)
    found = certificate(engine_of(), sampling, fault)
    assert not found.certified
    assert found.faults


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_with_every_seed(fault: str) -> None:
    sampling = PENALTIES if "penalty" in fault else Sampling(temperature=1.0)
    caught = [not certificate(engine_of(), sampling, fault, seed=1000 * seed).certified for seed in range(20)]
    assert sum(caught) == 20


def test_the_engine_is_as_it_was_afterwards() -> None:
    engine = engine_of()
    rule, pace = engine.rule, engine.pace
    for fault in ("u <= p", "wrong temperature on the draft", "off-by-one target row", "stale penalty history"):
        certificate(engine, PENALTIES, fault, samples=100, distance=0.7)
    assert (engine.rule, engine.pace, engine.num_unfinished) == (rule, pace, 0)
    assert "add" not in engine.__dict__
    assert certificate(engine).certified


# --- false alarms -------------------------------------------------------------------------------------------------


def alarms(repeats: int, samples: int, first_seed: int = 0) -> int:
    """How many runs of right engines have a statistic beyond its limit."""
    wish = Wish(Sampling(temperature=1.0), frozenset(), 24)
    effort = Effort(samples=samples, problems=1, whole=1, off_path=1, distance=0.9)
    found = 0
    for repeat in range(repeats):
        engine = engine_of("model", ("block", "token")[repeat % 2])
        prompts = [tuple(prompt) for prompt in PROMPTS]
        job = _Job(engine, prompts, wish, effort, first_seed + 1000 * repeat, lambda what, done, total: None)
        job._decode()
        tiers = job.stream.tier(drafts=True), job.stream.small()
        found += not all(check.passed for tier in tiers for check in tier.checks)
    return found


def test_a_right_engine_raises_no_alarm() -> None:
    assert alarms(6, 200) == 0


@pytest.mark.slow
def test_a_right_engine_raises_an_alarm_once_in_a_thousand_times_at_most() -> None:
    # With 2,000 repeats at 1 in 1,000 in all, 8 alarms or more would come up once in 1,000 times.
    assert alarms(2000, 250, first_seed=10**7) <= 7


def test_the_false_alarms_of_all_statistics_are_shared_out() -> None:
    found = certificate(engine_of())
    drawn = [check for tier in found.tiers for check in tier.checks if check.limit == ALPHA]
    assert 5 <= len(drawn) + 1 <= NUM_TESTS  # and the bound of the tier "small"
    assert ALPHA * NUM_TESTS == FALSE_ALARMS


# --- what it says -------------------------------------------------------------------------------------------------


def test_a_lossy_rule_is_measured_and_never_certified() -> None:
    engine = engine_of()
    engine.rule = TypicalRule()
    found = certificate(engine)
    assert not found.certified
    assert found.verdict == "LOSSY, not certified"
    assert found.distance is not None
    assert 0.01 < found.distance < 1
    assert "never certified" in found.faults[0]


def test_a_fault_is_named_by_tier_figure_and_position() -> None:
    found = certificate(engine_of(), fault="off-by-one target row")
    assert any(
        fault.startswith("law: rows within rounds is ") and "prompt " in fault and ", token " in fault
        for fault in found.faults
    )


def test_missing_evidence_is_never_a_pass() -> None:
    check = Check("a", 0.0, 1.0, True)
    assert Tier("law", "", (check,), ()).state == "failed"
    assert Tier("law", "", (), (check,)).state == "failed"
    assert Tier("law", "", (check,), (Check("planted", 0.0, 1.0, False),)).state == "failed"
    assert Tier("law", "", (check,), (check,)).state == "passed"
    assert not Certificate(True, (Tier("law", "", not_applicable="nothing"),), {}).certified


def test_a_drafter_that_never_drafts_is_not_certified() -> None:
    class Silent(RepeatsTheLastToken):
        def propose(self, sequences, budgets):  # type: ignore[no-untyped-def]
            return super().propose(sequences, [0] * len(budgets))

    found = certify(toy_engine(TARGET, Silent(), slots=4, context_length=64), PROMPTS, quick=True)
    assert not found.certified
    assert any("evidence" in fault for fault in found.faults)


def test_a_pace_that_hardly_drafts_is_urged() -> None:
    class Reluctant(AutoPace):
        def budgets(self, sequences):  # type: ignore[no-untyped-def]
            return [0] * len(sequences)

    engine = engine_of()
    engine.pace = Reluctant()
    assert certificate(engine).certified


def test_a_users_own_drafter_is_certified() -> None:
    engine = toy_engine(TARGET, RepeatsTheLastToken(), slots=4, context_length=64)
    assert certify(engine, PROMPTS, quick=True).certified


def test_the_json_has_the_figures_and_what_they_mean() -> None:
    found = certificate(engine_of())
    record = json.loads(found.as_json())
    assert record["certified"] is True
    assert [tier["name"] for tier in record["tiers"]] == ["law", "stream", "small", "same text", "state"]
    assert (record["says"], record["does_not_say"]) == (DOES_SAY, DOES_NOT_SAY)
    assert all(text.count(". ") == 0 for text in (DOES_SAY, DOES_NOT_SAY)), "one sentence each"


def test_the_page_has_no_markup_but_its_own() -> None:
    evil = "<script>alert(1)</script>\x1b[31m"
    tier = Tier("law", evil, (Check(evil, 1.0, 0.0, False, evil, evil),), (Check(evil, 1.0, 0.0, True),), evil)
    page = as_page(Certificate(True, (tier,), {"drafter": evil}, notes=(evil,), provenance={"command": evil}))
    assert "<script" not in page
    assert "\x1b" not in page
    assert "&lt;script&gt;" in page


# --- what is refused ----------------------------------------------------------------------------------------------


def test_too_few_samples_for_the_asked_confidence_say_how_many_are_needed() -> None:
    with pytest.raises(InvalidOption, match=r"samples is 500; allowed: at least 2,397 "):
        certify(engine_of(), PROMPTS, samples=500, distance=0.1, confidence=0.9999)


@pytest.mark.parametrize(
    ("name", "value"),
    [("samples", 3), ("distance", 0.0), ("distance", 1.5), ("confidence", 1.0), ("seed", -1), ("quick", None)],
)
def test_a_value_outside_its_range_is_refused_by_name(name: str, value: object) -> None:
    if name == "quick":
        name, options = "prompts", {"prompts": []}
    else:
        options = {"prompts": PROMPTS, name: value}
    with pytest.raises(InvalidOption, match=name):
        certify(engine_of(), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("prompts", ["text", ["text"], [[]], [[V]], [[0] * 60], 3])
def test_prompts_that_cannot_be_decoded_are_refused(prompts: object) -> None:
    with pytest.raises(InvalidOption, match="prompt"):
        certify(engine_of(), prompts)  # type: ignore[arg-type]


def test_a_busy_engine_is_refused() -> None:
    engine = engine_of()
    engine.add(PROMPTS[0])
    with pytest.raises(InvalidOption, match="1 requests in it"):
        certify(engine, PROMPTS)


def test_a_figure_that_is_not_finite_is_still_json() -> None:
    check = Check("a", float("inf"), float(np.float32(1)), False)
    found = Certificate(True, (Tier("law", "", (check,), (check,)),), {"processor": object()})
    assert json.loads(found.as_json())["tiers"][0]["checks"][0]["figure"] == "inf"
