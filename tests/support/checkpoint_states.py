"""States in which a copy, a crash or a person may leave the log of a checkpoint, and what Spark says to a start on each.

They are made from the checkpoint of a query with one source, whose micro-batches 0 to 2 are finished.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

NEWEST = 2
"""The last micro-batch of the checkpoint that the states are made from."""

Change = Callable[[Path], None]


def _rewritten(how: Callable[[str], str]) -> Change:
    def change(file: Path) -> None:
        file.write_text(how(file.read_text()))

    return change


_WAYS: dict[str, Change] = {
    "missing": Path.unlink,
    "empty": _rewritten(lambda _text: ""),
    "cut off": _rewritten(lambda text: text[: len(text) // 2]),
    "cut off in its last line": _rewritten(lambda text: text[:-3]),
    "without its last line": _rewritten(lambda text: text.rpartition("\n")[0]),
    "of a newer version": _rewritten(lambda text: f"v9{text[2:]}"),
}


def _damaged(name: str, damage: Change, before: Change) -> Change:
    def change(checkpoint: Path) -> None:
        before(checkpoint)
        file = checkpoint / name
        damage(file)
        # The checksum that Spark writes beside a local file. S3 has none, and a copy may leave it out.
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)

    return change


def _copied(folder: str, number: int) -> Change:
    def change(checkpoint: Path) -> None:
        shutil.copyfile(checkpoint / folder / str(NEWEST), checkpoint / folder / str(number))

    return change


def _without(*names: str) -> Change:
    def change(checkpoint: Path) -> None:
        for name in names:
            where = checkpoint / name
            shutil.rmtree(where) if where.is_dir() else where.unlink()

    return change


def _states() -> dict[str, Change]:
    found: dict[str, Change] = {"as it was": _without()}
    for how in ("missing", "empty", "cut off"):
        found[f"metadata {how}"] = _damaged("metadata", _WAYS[how], _without())
    for way, before, files in (
        ("", _without(), ("offsets/1", "offsets/2", "commits/1", "commits/2")),
        ("unfinished, ", _without("commits/2"), ("offsets/1", "offsets/2", "commits/1")),
    ):
        for name in files:
            for how, damage in _WAYS.items():
                found[f"{way}{name} {how}"] = _damaged(name, damage, before)
        for name in ("offsets/0", "commits/0"):
            found[f"{way}{name} empty"] = _damaged(name, _WAYS["empty"], before)
    return found | {
        "commits one ahead": _copied("commits", NEWEST + 1),
        "offsets one ahead": _copied("offsets", NEWEST + 1),
        "offsets with a gap": _copied("offsets", NEWEST + 2),
        "commits two behind": _without("commits/1", "commits/2"),
        "no commits": _without("commits"),
        "no offsets": _without("offsets"),
        "no log but metadata": _without("offsets", "commits"),
        "older ones purged": _without("offsets/0", "commits/0"),
        "only the newest": _without("offsets/0", "commits/0", "offsets/1", "commits/1"),
        "only the newest, unfinished": _without("offsets/0", "offsets/1", "commits"),
    }


STATES = _states()
"""What makes each state of a copy of the checkpoint."""

SINCE_42 = frozenset({"metadata missing"})
"""The states that Spark refuses since 4.2. Before, it gives the query a new id."""

REFUSED = SINCE_42 | {
    "metadata empty",
    "metadata cut off",
    *(
        f"{way}offsets/{number} {how}"
        for way in ("", "unfinished, ")
        for number in (1, 2)
        for how in _WAYS
        if (way, number, how) not in (("", 1, "cut off in its last line"), ("unfinished, ", 2, "missing"))
    ),
    *(
        f"{name} {how}"
        for name in ("commits/2", "unfinished, commits/1")
        for how in _WAYS
        if how not in ("missing", "without its last line")
    ),
    "commits one ahead",
    "offsets with a gap",
    "no offsets",
    "only the newest",
    "only the newest, unfinished",
}
"""The states that Spark 4.3 refuses: `tests/integration/spark/test_checkpoint_states.py` starts a query on each."""

SKIPPING = frozenset({"unfinished, commits/1 missing", "commits two behind", "no commits"})
"""The states with which Spark leaves micro-batches out that are not finished, and only logs it."""
