"""The loop on a task that is learnt in no time: checkpoints, resuming, interrupts, full disks, what is kept."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
from itertools import pairwise

import pytest
import torch
from safetensors.torch import load_file

from outrider.errors import InvalidOption, OutriderError
from outrider.training.trainer import BEST, CURVE, LATEST, SCORE, Plan, Trainer, best_of, write_whole

STEPS = 23
PLAN = Plan(STEPS, learning_rate=0.05, every=5, bfloat16=False)
MUON = Plan(STEPS, learning_rate=0.05, every=5, bfloat16=False, muon=True)


class Line:
    """A line through points that are drawn anew in every step."""

    def __init__(self):
        dice = torch.Generator().manual_seed(0)
        drawn = {"slope": torch.randn(40, 3, generator=dice), "offset": torch.randn(40, generator=dice)}
        self.parameters = {name: torch.nn.Parameter(value) for name, value in drawn.items()}

    def loss_at(self, step, progress):
        dice = torch.Generator().manual_seed(step)
        points = torch.randn(16, 3, generator=dice)
        found = points @ self.parameters["slope"].T + self.parameters["offset"]
        return (found - points.sum(-1, keepdim=True)).square().mean() * (2 - progress)


class Spoilt(Line):
    """Its loss is no number from some step on."""

    def loss_at(self, step, progress):
        return super().loss_at(step, progress) * (float("nan") if step == 7 else 1)


def trainer(folder, plan=PLAN, task=Line, kind=Trainer, seed=0):
    folder.mkdir(exist_ok=True)
    return kind(task(), plan, folder, {"seed": seed})


def rising(step):
    """A score by which the last weights are the best."""
    return {SCORE: 1.0 + step}


def weights(trained):
    return {name: p.detach().clone() for name, p in trained.task.parameters.items()}


def are_equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def stop_after(step):
    """A watch that presses Ctrl-C once so many steps are done."""

    def watch(done, _):
        if done == step:
            os.kill(os.getpid(), signal.SIGINT)

    return watch


def interrupted(folder, step, kind=Trainer, plan=PLAN):
    begun = trainer(folder, plan, kind=kind)
    with pytest.raises(KeyboardInterrupt):
        begun.run(rising, stop_after(step))
    return begun


# ---------------------------------------------------------------- learning and resuming


@pytest.mark.parametrize("muon", [False, True])
def test_what_is_to_be_learnt_is_learnt(muon, tmp_path):
    begun = trainer(tmp_path, Plan(300, learning_rate=0.05, every=300, bfloat16=False, muon=muon))
    begun.run(rising)
    assert begun.progress.records[-1]["loss"] < 0.01
    assert torch.allclose(begun.task.parameters["slope"], torch.ones(40, 3), atol=0.1)


def test_the_rate_rises_then_falls_to_nothing():
    rates = [Plan(100, 1.0, warm_up=0.1).rate(step) for step in range(100)]
    assert rates[:10] == pytest.approx([0.1 * (i + 1) for i in range(10)])
    assert rates[10] == 1.0
    assert all(a > b for a, b in pairwise(rates[10:]))
    assert rates[-1] < 0.01


@pytest.mark.parametrize("plan", [PLAN, MUON])
@pytest.mark.parametrize("step", [1, 7, 10, STEPS - 1])
def test_a_training_that_was_interrupted_ends_with_the_same_weights(step, plan, tmp_path):
    whole = trainer(tmp_path / "whole", plan)
    whole.run(rising)
    assert interrupted(tmp_path / "parts", step, plan=plan).progress.step == step
    again = trainer(tmp_path / "parts", plan)
    again.resume()
    assert again.progress.step == step
    again.run(rising)
    assert are_equal(weights(again), weights(whole))
    assert again.progress.records == whole.progress.records
    for file in (LATEST, BEST):
        assert are_equal(load_file(tmp_path / "parts" / file), load_file(tmp_path / "whole" / file))
    assert (tmp_path / "parts" / CURVE).read_bytes() == (tmp_path / "whole" / CURVE).read_bytes()


class ForgetsItsMoments(Trainer):
    """Resumes with the weights alone."""

    def _load(self, tensors):
        super()._load({name: tensor for name, tensor in tensors.items() if name.startswith("weights.")})


def test_an_optimiser_that_was_not_resumed_is_caught(tmp_path):
    whole = trainer(tmp_path / "whole")
    whole.run(rising)
    interrupted(tmp_path / "parts", 7)
    again = trainer(tmp_path / "parts", kind=ForgetsItsMoments)
    again.resume()
    again.run(rising)
    assert not are_equal(weights(again), weights(whole))


def test_the_curve_has_a_record_before_the_first_step_and_one_per_look(tmp_path):
    begun = trainer(tmp_path)
    begun.run(rising)
    records = [json.loads(line) for line in (tmp_path / CURVE).read_text().splitlines()]
    assert records == begun.progress.records
    assert [record["step"] for record in records] == [0, 5, 10, 15, 20, STEPS]
    assert ["loss" in record for record in records] == [False, *[True] * 5]


# ---------------------------------------------------------------- which weights are kept


def test_the_best_weights_are_kept_and_put_back(tmp_path):
    begun, at_ten = trainer(tmp_path), {}

    def peak_at_ten(step):
        if step == 10:
            at_ten.update(weights(begun))
        return {SCORE: 2.0 if step == 10 else 1.0}

    begun.run(peak_at_ten)
    assert not are_equal(weights(begun), at_ten)
    begun.restore_best()
    assert are_equal(weights(begun), at_ten)
    assert best_of(begun.progress.records)["step"] == 10


def test_of_weights_with_one_score_the_latest_are_kept(tmp_path):
    begun = trainer(tmp_path)
    begun.run(lambda step: {SCORE: 1.0})
    last = weights(begun)
    begun.restore_best()
    assert are_equal(weights(begun), last)
    assert best_of(begun.progress.records)["step"] == STEPS


def test_an_interrupt_does_not_pass_unmeasured_weights_for_the_best(tmp_path):
    interrupted(tmp_path, 8)
    measured = load_file(tmp_path / BEST)
    latest = load_file(tmp_path / LATEST)
    assert json.loads((tmp_path / CURVE).read_text().splitlines()[-1])["step"] == 5
    assert not torch.equal(measured["slope"], latest["weights.slope"])


# ---------------------------------------------------------------- what goes wrong


def test_ctrl_c_works_as_ever_after_training(tmp_path):
    before = signal.getsignal(signal.SIGINT)
    interrupted(tmp_path, 3)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_ctrl_c_does_not_wait(tmp_path):
    begun = trainer(tmp_path)

    def press_twice(done, _):
        if done == 2:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
            raise AssertionError("the second one was postponed too")

    with pytest.raises(KeyboardInterrupt):
        begun.run(rising, press_twice)


@pytest.mark.skipif(os.name != "posix", reason="files cannot be limited here")
def test_a_full_disk_leaves_the_previous_checkpoint(tmp_path):
    begun = interrupted(tmp_path, 10)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    again = trainer(tmp_path)
    again.resume()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, limits[1]))  # the system itself refuses to write more
    try:
        with pytest.raises(OutriderError, match=r"could not be written .*; the previous one is still there"):
            again.run(rising)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
    last = trainer(tmp_path)
    last.resume()
    assert are_equal(weights(last), weights(begun))


def test_a_file_that_is_not_whole_never_has_the_name(tmp_path):
    path = tmp_path / "file"
    path.write_text("before")

    def fill_the_disk(beside):
        beside.write_text("half of wh")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OutriderError, match=r"No space left on device"):
        write_whole(path, fill_the_disk)
    assert [file.name for file in tmp_path.iterdir()] == ["file"]
    assert path.read_text() == "before"


def test_a_loss_that_is_no_number_ends_training_and_keeps_what_was(tmp_path):
    with pytest.raises(OutriderError, match=r"The loss is nan in step 7; lower the learning rate"):
        trainer(tmp_path, task=Spoilt).run(rising)
    again = trainer(tmp_path)
    again.resume()
    assert again.progress.step == 5


def test_nothing_to_resume_is_refused(tmp_path):
    with pytest.raises(InvalidOption, match=r"resume is .*; allowed: a checkpoint of this training\. No such file"):
        trainer(tmp_path).resume()


def test_a_damaged_checkpoint_is_refused(tmp_path):
    interrupted(tmp_path, 8)
    whole = (tmp_path / LATEST).read_bytes()
    (tmp_path / LATEST).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InvalidOption, match="resume is"):
        trainer(tmp_path).resume()


def test_another_trainings_checkpoint_is_refused(tmp_path):
    interrupted(tmp_path, 8)
    for other in (
        trainer(tmp_path, Plan(STEPS + 1, learning_rate=0.05, every=5, bfloat16=False)),
        trainer(tmp_path, seed=1),
    ):
        with pytest.raises(InvalidOption, match="a checkpoint of the same training"):
            other.resume()
