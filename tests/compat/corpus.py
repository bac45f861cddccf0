"""What earlier commits wrote: one folder for each commit, recorded once by `record.py` and never changed afterwards."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
MARK, SUMS = "corpus.json", "SHA256SUMS"


@dataclass(frozen=True)
class Document:
    """One document as code writes it. `read`: what the code makes of its bytes; None where it never reads them.

    `grows`: its readers pass over members that they do not know, so that some may be added.
    """

    value: Any
    write: Callable[[Any], bytes]
    read: Callable[[bytes], Any] | None = None
    grows: bool = False

    @property
    def data(self) -> bytes:
        return self.write(self.value)


def folders(part: str) -> list[Path]:
    """The folders of the commits of which this part is recorded, the newest last."""
    found = [file.parent for file in HERE.glob(f"*/{MARK}") if (file.parent / part).is_dir()]
    return sorted(found, key=lambda folder: json.loads((folder / MARK).read_text())["recorded"])


def newest(part: str) -> Path:
    """This part as the present code must write it as well; that of older commits it only has to read."""
    return folders(part)[-1] / part


def sums(folder: Path) -> str:
    """The SHA-256 of every file of a corpus, as `sha256sum` writes them."""
    files = sorted(file.relative_to(folder) for file in folder.rglob("*") if file.is_file() and file.suffix != ".pyc")
    lines = [f"{hashlib.sha256((folder / file).read_bytes()).hexdigest()}  {file}\n" for file in files]
    return "".join(line for line in lines if not line.endswith(f"  {SUMS}\n"))


def keys_folder() -> Path:
    """The keys of the first corpus sign in all."""
    return folders("keys")[0] / "keys"


def as_text(value: Any) -> bytes:
    """JSON that is easy to compare."""
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False).encode() + b"\n"


def compact(value: Any) -> bytes:
    """JSON as Airflow and databases keep it: the order of the keys says nothing."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False).encode() + b"\n"


def shape(value: Any) -> Any:
    """The value with "text" in place of each text: people read those, and they may be worded otherwise."""
    if isinstance(value, dict):
        return {key: shape(member) for key, member in value.items()}
    if isinstance(value, list):
        return [shape(member) for member in value]
    return "text" if isinstance(value, str) else value


def without_prose(value: Any, *names: str) -> Any:
    """The value with only the shape of these members."""
    if isinstance(value, dict):
        return {key: shape(one) if key in names else without_prose(one, *names) for key, one in value.items()}
    return [without_prose(one, *names) for one in value] if isinstance(value, list) else value


def same_json(found: object, recorded: object, where: str = "") -> list[str]:
    """Where `found` lacks what is recorded, or says otherwise; members of objects may be added."""
    if isinstance(recorded, dict) and isinstance(found, dict):
        faults = [f"{where}/{key} is gone" for key in recorded if key not in found]
        shared = [key for key in recorded if key in found]
        return faults + [fault for key in shared for fault in same_json(found[key], recorded[key], f"{where}/{key}")]
    if isinstance(recorded, list) and isinstance(found, list) and len(recorded) == len(found):
        pairs = zip(found, recorded, strict=True)
        return [fault for place, (one, two) in enumerate(pairs) for fault in same_json(one, two, f"{where}/{place}")]
    return [] if found == recorded else [f"{where} is {found!r}, was {recorded!r}"]
