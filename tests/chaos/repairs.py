"""What a user does about a message: the repair that it names, from a table of known ones."""

import re
import shlex
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from chaos.attempt import Ended
from chaos.folders import state_of, tried

MISTAKE, TEMPORARY = 2, 75


@dataclass(frozen=True)
class Repair:
    """A repair, and whether it answers a refusal, which a held lock or a full disk is not."""

    name: str
    is_refusal: bool
    act: Callable[[Path], None]


def wait(_: Path) -> None:
    time.sleep(3.0)


def command(text: str) -> Callable[[Path], None]:
    """A command that the message names, with what it names it for."""
    words = shlex.split(text)

    def act(folder: Path) -> None:
        tried(folder, state_of(folder), *words)

    return act


def remove(name: str) -> Callable[[Path], None]:
    def act(folder: Path) -> None:
        path = (folder / name).resolve()
        if path.is_relative_to(folder.resolve()) and path != folder.resolve():
            shutil.rmtree(path, ignore_errors=True)
            if path.is_file():
                path.unlink()

    return act


BUSY = r"another process is training|Unable to acquire lock|is busy, it is being blocked"
BUSY += r"|holds (?:the|this) workspace"
DISK = r"[Nn]o space left|[Ff]ree some space|Input/output error"
UNREADABLE = r"Lockfile 'dvc\.lock' is corrupted|unable to read: 'dvc\.lock'"
UNREADABLE += r"|'dvc\.lock' (?:validation failed|is invalid)"
CHECKOUT = r"[Rr]un (git (?:checkout|restore) (?:-- )?[\w/-]+(?: [\w/-]+\.yaml)?)"
REMOVED = r"[Rr]emove `?((?:work|runs|data|\.dvc)/[\w./-]+)"
Act = Callable[[Path], None]
KNOWN: tuple[tuple[str, bool, Callable[[re.Match[str]], Act]], ...] = (
    (BUSY, False, lambda _: wait),
    (DISK, False, lambda _: wait),
    (r"run `(dopsd train [^`]*)` to restore", True, lambda found: command(found[1])),
    (r"`((?:git|dvc) (?:checkout|restore)[^`]*)`", True, lambda found: command(found[1])),
    (CHECKOUT, True, lambda found: command(found[1])),
    (REMOVED, True, lambda found: remove(found[1].rstrip("."))),
    # DVC's own, which leaves its repair to git
    (UNREADABLE, True, lambda _: command("git checkout dvc.lock")),
)


def find(ended: Ended) -> Repair | None:
    """The repair that the end of an attempt asks for; None where its message is not known."""
    for pattern, is_refusal, act in KNOWN:
        match = re.search(pattern, ended.line) or re.search(pattern, ended.said[-3000:])
        if match:
            return Repair(match[0][:80], is_refusal, act(match))
    if ended.stage_status == TEMPORARY:
        return Repair("the same command later", False, wait)
    return None
