"""The command `outrider convert`: a trained head in another format, or the check that it was read as it was trained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

import outrider.cli.options as o
from outrider.cli.leaving import leaving_cleanly
from outrider.cli.screen import Screen, open_screen
from outrider.errors import InvalidOption
from outrider.text import visible

if TYPE_CHECKING:
    from outrider.convert import HeadCheck
    from outrider.drafters.heads.files import Reading
    from outrider.drafters.heads.formats_readers import Fate
    from outrider.models.opening import Opened

MISREAD = 1

MOST_LAYERS = 10_000
"""More than any target has; what it really has is known only with --target."""

OPTIONS = {"format": "--to", "folder": "OUT", "feature_layers": "--layers", "d2t": "--d2t", "tokens": "--tokens"}
"""Names in errors, as users type them."""

Head = Annotated[
    str,
    typer.Argument(help="A folder with a head, a Hugging Face id, or smollm2: the shipped head.", show_default=False),
]
Out = Annotated[str | None, typer.Argument(help="A folder for the result; new or empty.", show_default=False)]
To = Annotated[
    str | None,
    typer.Option(
        help="safeailab-eagle1, safeailab-eagle3 (SpecForge's too), speculators-eagle3, medusa, vllm-medusa, "
        "tgi-medusa.",
        metavar="FORMAT",
        show_default=False,
    ),
]
Target = Annotated[
    str | None,
    typer.Option(
        help="The head's target: a folder, a .gguf file, a Hugging Face id or smollm2.",
        metavar="ID",
        show_default="what the head's files name",
    ),
]
Check = Annotated[
    bool,
    typer.Option(
        "--check", help="Run the head on text of its target in every plausible reading; with OUT, before writing it."
    ),
]
Layers = Annotated[
    str | None,
    typer.Option(
        help="Ids of the target's states that the head reads, as transformers counts hidden_states; joined by commas.",
        metavar="IDS",
        show_default="what the head's files say",
    ),
]
D2t = Annotated[
    str | None,
    typer.Option("--d2t", help="What d2t holds, if that cannot be told: offset or absolute.", metavar="KIND"),
]
Tokens = Annotated[int, typer.Option(help="Tokens of text for --check, prompt and all.", min=64, metavar="N")]


def convert(
    head: Head,
    out: Out = None,
    to: To = None,
    target: Target = None,
    check: Check = False,
    layers: Layers = None,
    d2t: D2t = None,
    tokens: Tokens = 384,
    precision: o.Precision = None,
    threads: o.Threads = None,
) -> None:
    """Write a trained head in another format, or check that it was read as it was trained.

    Says which programs run the result, and which compute something else with it.
    With --check, exit code 1 says that another reading than the file's is clearly better.
    """
    given = dict(locals())  # every option by its name
    screen = open_screen()
    with leaving_cleanly(screen, lambda name: OPTIONS.get(name, name)):
        _check_options(given)
        reading, opened = _read(screen, given)
        for note in reading.notes:
            screen.warn(note)
        if check:
            assert opened is not None
            _check(screen, reading, opened, tokens)
        if out is not None and to is not None:
            _write(screen, given, reading, opened)


# ---------------------------------------------------------------- steps of the command


def _check_options(given: dict[str, Any]) -> None:
    if given["out"] is None and not given["check"]:
        raise InvalidOption("OUT", "missing", "a new folder, or --check", "Or both.")
    if (given["out"] is None) != (given["to"] is None):
        raise InvalidOption("--to", given["to"] or "missing", "a format together with OUT")
    if given["check"] and given["target"] is None:
        raise InvalidOption("--target", "missing", "the head's target with --check")
    if not given["check"]:
        for name in ("precision", "threads"):
            if given[name] is not None:
                raise InvalidOption(f"--{name}", given[name], "left out without --check", "Nothing is run then.")
    if given["d2t"] not in (None, "offset", "absolute"):
        raise InvalidOption("d2t", given["d2t"], "offset, absolute")


def _layers(typed: str | None) -> tuple[int, ...] | None:
    try:
        ids = None if typed is None else tuple(int(part) for part in typed.split(","))
        if ids is not None and not all(0 <= layer <= MOST_LAYERS for layer in ids):
            raise ValueError("out of range")
        return ids
    except ValueError as error:
        raise InvalidOption(
            "feature_layers", typed, f"whole numbers from 0 to {MOST_LAYERS}, such as 2,15,27"
        ) from error


def _read(screen: Screen, given: dict[str, Any]) -> tuple[Reading, Opened | None]:
    """The head, and its target where the check needs it."""
    from outrider.convert import model_facts, target_facts
    from outrider.drafters.heads.files import FORMATS, read
    from outrider.drafters.heads.formats import Hints, check_new
    from outrider.models.locate import locate_head

    if given["out"] is not None:
        check_new(given["out"])
        if given["to"] not in FORMATS:
            raise InvalidOption("format", given["to"], ", ".join(FORMATS))
    opened, layers = _open(screen, given) if given["check"] else None, _layers(given["layers"])
    depth = vocab_size = None
    if given["target"] is not None:
        facts = target_facts(given["target"]) if opened is None else model_facts(opened.model)
        depth, vocab_size = facts.num_layers, facts.vocab_size
    kind: Literal["offset", "absolute"] | None = given["d2t"]
    hints = Hints(depth, vocab_size, layers, kind, as_stored=opened is None or given["out"] is not None)
    return read(locate_head(given["head"]), hints), opened


def _open(screen: Screen, given: dict[str, Any]) -> Opened:
    import torch

    from outrider.loading import check_options
    from outrider.models.opening import open_model

    model = o.values(("precision", "threads"), given)
    check_options(num_draft_tokens="auto", rule="auto", precision=model.get("precision", "auto"), invariant=False)
    if "threads" in model:
        torch.set_num_threads(model["threads"])
    with screen.loading() as progress:
        return open_model(given["target"], model.get("precision", "auto"), torch.device("cpu"), progress)


def _check(screen: Screen, reading: Reading, opened: Opened, tokens: int) -> None:
    from outrider.convert import check_head, own_text
    from outrider.models.opening import full_matrices

    screen.note(f"The target writes {tokens} tokens ...")
    found = check_head(reading.head, opened.model, own_text(opened, tokens), full_matrices(opened))
    Console().print(agreements_table(found))
    for line in verdict(found):
        Console().print(Text(line), soft_wrap=True)
    if not found.is_as_read:
        raise typer.Exit(MISREAD)


def _write(screen: Screen, given: dict[str, Any], reading: Reading, opened: Opened | None) -> None:
    import outrider.convert as conversion
    from outrider.drafters.heads.files import check_format, write_head
    from outrider.drafters.heads.formats_readers import fates
    from outrider.models.opening import full_matrices

    check_format(reading.head, given["to"])
    name, head = given["target"] or reading.target, reading.head
    if not name and given["to"] != "safeailab-eagle1" and given["to"] != "safeailab-eagle3":
        raise InvalidOption("--target", "missing", "the head's target, which its files do not name")
    wanted = conversion.missing(head, given["to"])
    if wanted and given["target"] is not None:
        screen.note(f"Copying the target's own matrices into the head: {', '.join(wanted)}")
        head = conversion.complete(head, wanted, full_matrices(opened or _open(screen, given)))
    write_head(head, given["out"], given["to"], target=name)
    depth = None if given["target"] is None else conversion.target_facts(given["target"]).num_layers
    Console().print(fates_table(fates(head, given["to"], depth)))
    screen.note(f"The head is in {given['out']}. To check it: outrider convert {given['out']} --check --target ID")


# ---------------------------------------------------------------- what is shown


def agreements_table(found: HeadCheck) -> Table:
    """Every reading with its agreement, the best one marked."""
    table = Table(box=SIMPLE_HEAD, caption=Text(f"Top-1 agreement with the target on {found.num_tokens} tokens"))
    for heading in ("reading", "step 1", "step 2", ""):
        table.add_column(heading, justify="left" if heading in ("reading", "") else "right")
    undecided = found.undecided
    for each in found.agreements:
        alike = "cannot be told from the best" if each.reading in undecided else ""
        mark = "best" if each is found.best else alike
        second = "" if each.step2 is None else f"{each.step2:.1%}"
        table.add_row(*(Text(visible(cell)) for cell in (each.reading, f"{each.step1:.1%}", second, mark)))
    return table


def verdict(found: HeadCheck) -> list[str]:
    """What the agreements say, in sentences."""
    lines = []
    if found.is_as_read:
        lines.append("No other reading is clearly better than the one in the file.")
    else:
        lines.append(f"Another reading is clearly better than the one in the file: {found.best.reading}.")
    if not found.is_useful:
        lines.append("But no reading agrees with the target as a trained head does: is this its target?")
    return [visible(line) for line in lines]


def fates_table(found: tuple[Fate, ...]) -> Table:
    """What becomes of the written head in other programs."""
    table = Table(box=SIMPLE_HEAD)
    for heading in ("program", "", "because"):
        table.add_column(heading, overflow="fold")
    for fate in found:
        table.add_row(*(Text(visible(cell)) for cell in (fate.program, fate.outcome, "\n".join(fate.reasons))))
    return table
