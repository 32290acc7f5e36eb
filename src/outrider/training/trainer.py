"""The loop: optimiser, schedule, checkpoints that survive anything, curves, and which checkpoint is kept.

It knows neither heads nor texts: a task has parameters and the loss of a step.
"""

from __future__ import annotations

import json
import math
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Ordered
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from outrider.errors import InvalidOption, OutriderError

LATEST, BEST, CURVE = "latest.safetensors", "best.safetensors", "curve.jsonl"
SCORE = "predicted_speedup"
"""Of a record: the weights of the best one are kept."""

BETAS = (0.9, 0.95)
CLIP = 1.0
MOMENTS = ("step", "exp_avg", "exp_avg_sq", "momentum_buffer")
"""What an optimiser may remember of a parameter."""

MUON_RATE = 4.0
"""Learning rates with Muon, in AdamW's: entries of Muon's steps are 0.2 of the rate on average, AdamW's up to all."""


class Task(Protocol):
    """What is trained."""

    parameters: dict[str, torch.nn.Parameter]

    def loss_at(self, step: int, progress: float) -> torch.Tensor:
        """The loss of a step; `progress` is the part of training that is over."""


@dataclass(frozen=True)
class Plan:
    """How long and how fast.

    Args:
        steps: of the optimiser.
        learning_rate: after warming up; it falls to zero along a half cosine.
        warm_up: part of the steps in which the rate rises.
        every: steps between evaluations and checkpoints.
        bfloat16: whether products run in bfloat16.
        muon: whether matrices take orthogonal steps (Muon, Jordan 2024), all rates being `MUON_RATE` times as high;
            else AdamW's.
    """

    steps: int
    learning_rate: float = 6e-4
    warm_up: float = 0.04
    every: int = 50
    bfloat16: bool = True
    muon: bool = False

    def rate(self, step: int) -> float:
        """The learning rate of a step."""
        warm = max(1, round(self.warm_up * self.steps))
        if step < warm:
            return self.learning_rate * (step + 1) / warm
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, self.steps - warm)))


@dataclass
class Progress:
    """How far training is.

    Args:
        step: steps done.
        records: what was measured, one per evaluation.
    """

    step: int = 0
    records: list[dict[str, Any]] = field(default_factory=list)


Evaluate = Callable[[int], dict[str, float]]
"""Measures what has been learnt after so many steps."""

Watch = Callable[[int, float], None]
"""Called with (steps done, loss) after every step."""


class Trainer:
    """Trains a task and writes it down; resuming gives the weights that an unbroken run would have given.

    Args:
        task: what is trained.
        plan: how.
        folder: for checkpoints and curves.
        identity: what makes two runs the same; resuming another one is refused.
    """

    def __init__(self, task: Task, plan: Plan, folder: Path, identity: Mapping[str, Any]) -> None:
        self.task, self.plan, self.folder = task, plan, folder
        self._identity = {**identity, "plan": asdict(plan)}
        self._optimizers = _optimizers(list(task.parameters.values()), muon=plan.muon)
        self.progress = Progress()

    def run(self, evaluate: Evaluate, watch: Watch | None = None) -> Progress:
        """Train to the end of the plan, from where the folder's checkpoint is; what is there is measured first.

        Raises:
            KeyboardInterrupt: after Ctrl-C, once the step is done and saved.
            OutriderError: the loss is not finite, or the disk is full.
        """
        with postponed_interrupts() as interrupted:
            if not self.progress.records:
                self._measure({}, evaluate)
            while self.progress.step < self.plan.steps and not interrupted():
                loss = self._step()
                if not math.isfinite(loss):
                    raise OutriderError(f"The loss is {loss} in step {self.progress.step}; lower the learning rate.")
                self.progress.step += 1
                if self.progress.step % self.plan.every == 0 or self.progress.step == self.plan.steps:
                    self._measure({"loss": loss}, evaluate)
                if watch is not None:
                    watch(self.progress.step, loss)
            if interrupted():
                self.save()
                raise KeyboardInterrupt
        return self.progress

    def _step(self) -> float:
        step = self.progress.step
        for optimizer in self._optimizers:
            optimizer.zero_grad()
            for group in optimizer.param_groups:
                group["lr"] = self.plan.rate(step) * (MUON_RATE if self.plan.muon else 1.0)
        loss = backward(self.task, step, step / self.plan.steps, self.plan.bfloat16)
        torch.nn.utils.clip_grad_norm_(self.task.parameters.values(), CLIP)
        for optimizer in self._optimizers:
            optimizer.step()
        return loss

    def _measure(self, record: dict[str, float], evaluate: Evaluate) -> None:
        """Add to the curve, keep the weights if they are the best so far, and save."""
        records = self.progress.records
        records.append({"step": self.progress.step, **record, **evaluate(self.progress.step)})
        if best_of(records) is records[-1]:
            weights = {name: p.detach() for name, p in self.task.parameters.items()}
            write_whole(self.folder / BEST, lambda path: save_file(weights, path))
        self.save()

    def save(self) -> None:
        """Write the checkpoint and the curve; a failure leaves the previous ones.

        Raises:
            OutriderError: the disk is full or may not be written to.
        """
        tensors = {f"weights.{name}": p.detach() for name, p in self.task.parameters.items()}
        for name, parameter in self.task.parameters.items():
            for optimizer in self._optimizers:
                tensors |= {f"{key}.{name}": value for key, value in optimizer.state.get(parameter, {}).items()}
        meta = {"identity": json.dumps(self._identity, sort_keys=True), "progress": json.dumps(asdict(self.progress))}
        curve = "".join(json.dumps(record) + "\n" for record in self.progress.records)
        write_whole(self.folder / LATEST, lambda path: save_file(tensors, path, meta))
        write_whole(self.folder / CURVE, lambda path: path.write_text(curve, encoding="utf-8"))

    def restore_best(self) -> None:
        """Put the best weights that were measured back into the task."""
        with safe_open(self.folder / BEST, "pt") as file:
            for name, parameter in self.task.parameters.items():
                parameter.data.copy_(file.get_tensor(name))

    def resume(self) -> None:
        """Go on from the folder's checkpoint.

        Raises:
            InvalidOption: there is none, it is damaged, or it is of another run.
        """
        path = self.folder / LATEST
        try:
            with safe_open(path, "pt") as file:
                meta = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise InvalidOption("resume", str(path), "a checkpoint of this training", f"{error}.") from error
        wanted = json.dumps(self._identity, sort_keys=True)
        if meta.get("identity") != wanted:
            fix = f"It was trained with {meta.get('identity')}, now asked {wanted}."
            raise InvalidOption("resume", str(path), "a checkpoint of the same training", fix)
        self._load(tensors)
        self.progress = Progress(**json.loads(meta["progress"]))

    def _load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        for name, parameter in self.task.parameters.items():
            parameter.data.copy_(tensors[f"weights.{name}"])
            moments = {key: tensors[f"{key}.{name}"] for key in MOMENTS if f"{key}.{name}" in tensors}
            moments |= {key: m.to(parameter.device) for key, m in moments.items() if m.ndim}  # counts stay on the CPU
            if moments:  # not before the first step
                self._optimizer_of(parameter).state[parameter] = moments

    def _optimizer_of(self, parameter: torch.nn.Parameter) -> torch.optim.Optimizer:
        return next(o for o in self._optimizers if any(p is parameter for g in o.param_groups for p in g["params"]))


def _optimizers(parameters: list[torch.nn.Parameter], *, muon: bool) -> list[torch.optim.Optimizer]:
    """One for the matrices and one for the rest, or one for all."""
    matrices = [p for p in parameters if muon and p.ndim == 2]
    rest = [p for p in parameters if not (muon and p.ndim == 2)]
    found: list[torch.optim.Optimizer] = []
    if matrices:
        found.append(torch.optim.Muon(matrices, lr=0.0, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"))
    if rest:
        found.append(torch.optim.AdamW(rest, lr=0.0, betas=BETAS, weight_decay=0.0))
    return found


def best_of(records: Ordered[dict[str, Any]]) -> dict[str, Any]:
    """The record of the weights that are kept: of the highest score, and the latest of several."""
    return max(reversed(records), key=lambda record: record[SCORE])


def backward(task: Task, step: int, progress: float, bfloat16: bool) -> float:
    """The loss of a step, whose gradients are added to the parameters'."""
    device = next(iter(task.parameters.values())).device.type
    with torch.autocast(device, torch.bfloat16, enabled=bfloat16):
        loss = task.loss_at(step, progress)
    loss.backward()  # type: ignore[no-untyped-call]
    return float(loss.detach())


def write_whole(path: Path, write: Callable[[Path], Any]) -> None:
    """Write a file beside `path` and move it there when it is whole.

    Raises:
        OutriderError: it cannot be written; what was at `path` is still there.
    """
    beside = path.with_name(f".{path.name}.new")
    try:
        write(beside)
        with beside.open("rb+") as file:
            os.fsync(file.fileno())  # a crash of the machine must not leave the name without the content
        beside.replace(path)
    except (OSError, SafetensorError) as error:
        beside.unlink(missing_ok=True)
        raise OutriderError(f"{path} could not be written ({error}); the previous one is still there.") from error


def read_kept(path: Path) -> dict[str, Any]:
    """A JSON file of a training's folder.

    Raises:
        InvalidOption: it is damaged.
    """
    fix = "It is damaged. Begin again in another folder."
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidOption("resume", str(path), "a file of this training", fix) from error
    if not isinstance(found, dict):
        raise InvalidOption("resume", str(path), "a file of this training", fix)
    return found


@contextmanager
def postponed_interrupts() -> Iterator[Callable[[], bool]]:
    """Ctrl-C waits: yields whether it was pressed. Pressed twice, or outside the main thread, it works as ever."""
    pressed = False
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return

    def press(*_: Any) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    before = signal.signal(signal.SIGINT, press)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)
