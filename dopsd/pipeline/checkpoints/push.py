"""`dopsd push USER/NAME`: upload an adapter, or a whole model, with its card.

Nothing is sent before every file has been checked, and all files arrive in one commit.
"""

import fcntl
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from dopsd.config.params import Params
from dopsd.core.errors import Code
from dopsd.core.files import WORK, read_json
from dopsd.core.progress import log
from dopsd.models.adapter_files import ADAPTER_CONFIG, DIGESTS, has_all_weights, identity
from dopsd.models.registry import read_config, registering_module
from dopsd.pipeline.checkpoints.export import write_merged
from dopsd.pipeline.results.run_report import refresh
from dopsd.tracking import hub
from dopsd.tracking.flavour import require_sealed
from dopsd.tracking.hub_card import Release, hub_card, shared_page
from dopsd.training.run_identity import identify
from dopsd.training.run_settings import RunSettings

CARD, REPORT, MODEL = "README.md", "report.html", "config.json"
TEMPLATE, TOKENIZER = "chat_template.jinja", "tokenizer_config.json"


@dataclass(frozen=True)
class PushRequest:
    """What a person asks to push; the attributes are the options of `dopsd push`."""

    repo: str
    run: RunSettings
    params: Params
    adapter: Path | None = None  # None: the run's selected checkpoint
    is_merged: bool = False
    dtype: str = "float32"  # of merged weights
    is_private: bool = True
    revision: str = hub.MAIN
    message: str | None = None
    base_model: str | None = None
    license: str | None = None
    has_report: bool = True
    is_dry: bool = False


def push(request: PushRequest) -> str | None:
    """Upload a checkpoint with card and report; return the commit's address, None without one."""
    hub.check_names(request.repo, request.revision)
    adapter = request.adapter or request.run.key.folder / "best"
    digests = require_sealed(adapter)
    has_results = _is_tested(request.run, digests[identity(adapter).name])
    if not request.is_dry:
        hub.require_token()
    with ExitStack() as stack:
        release = _release(request, has_all_weights(adapter))
        if release.is_merged:
            files, release = stack.enter_context(_merged(request, adapter, release))
        else:
            files = _adapter_files(adapter, digests)
        files |= _pages(request, release, has_results)
        upload = _upload(request, files, release.is_merged)
        hub.check_files(upload)
        _announce(upload, request.is_dry)
        return None if request.is_dry else _send(upload)


def _release(request: PushRequest, is_whole: bool) -> Release:
    """Return what the card says."""
    if is_whole and request.is_merged:
        raise Code.OPTIONS.error("push: the checkpoint holds all weights; leave out --merged")
    module = registering_module(read_config(Path(request.run.model.path)))
    names = request.base_model, request.license
    return Release(request.repo, request.is_merged or is_whole, module, *names, is_whole=is_whole)


def _is_tested(run: RunSettings, digest: str) -> bool:
    """Return whether these weights are those that the run selected and tested."""
    folder = run.key.folder
    if not run.key.is_tested:
        return False
    if read_json(folder / "best" / "select.json", "dopsd select")["digest"] != digest:
        return False
    if not identify(run).is_current(read_json(folder / "train.json", "dopsd train")):
        raise Code.PUSH_REFUSED.error(
            f"push: {folder} was made with other settings, data or code; run `dopsd repro`, so that"
            " the card tells the truth"
        )
    return True


def _adapter_files(adapter: Path, digests: dict[str, str]) -> dict[str, Path | bytes]:
    seal = json.dumps(digests, indent=1, sort_keys=True) + "\n"
    return {name: adapter / name for name in digests} | {DIGESTS: seal.encode()}


@contextmanager
def _merged(
    request: PushRequest, adapter: Path, release: Release
) -> Iterator[tuple[dict[str, Path | bytes], Release]]:
    """Yield the files of the merged model, in a folder that is removed afterwards."""
    WORK.mkdir(exist_ok=True)
    log(f"push: writing {adapter} and {request.run.model.path} as one model")
    with (
        TemporaryDirectory(prefix="push-", dir=WORK) as tmp,
        (Path(tmp) / "lock").open(
            "w", encoding="utf-8"
        ) as lock,  # `dopsd clean` keeps a folder in use
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        merged = Path(tmp) / "merged"
        rounding = write_merged(request.run.model, adapter, merged, request.dtype)
        _template_into_config(merged)
        files: dict[str, Path | bytes] = {p.name: p for p in merged.iterdir()}
        note = (
            f"The weights are {request.dtype}: rounding costs {rounding.lost:.3%} of the"
            f" {'training' if release.is_whole else 'adapter'}'s change."
        )
        yield files, replace(release, rounding=note)


def _template_into_config(folder: Path) -> None:
    """Move the chat template into the tokenizer's JSON file, where transformers looks too."""
    if (folder / TEMPLATE).is_file():
        config = read_json(folder / TOKENIZER, "dopsd export")
        config["chat_template"] = (folder / TEMPLATE).read_text(encoding="utf-8")
        (folder / TOKENIZER).write_text(
            json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
        )
        (folder / TEMPLATE).unlink()


def _pages(request: PushRequest, release: Release, has_results: bool) -> dict[str, Path | bytes]:
    """Return the card, and the report of the run if there is one."""
    run = request.run
    card = hub_card(release, run, request.params.evaluate, has_results)
    pages: dict[str, Path | bytes] = {CARD: card.encode()}
    keys = [run.key] if has_results and request.has_report else []
    for path in refresh(request.params, keys, "push").values():
        text = path.read_text(encoding="utf-8")
        pages[REPORT] = shared_page(text, run).encode()
    return pages


def _upload(request: PushRequest, files: dict[str, Path | bytes], is_merged: bool) -> hub.Upload:
    kinds = (MODEL, ADAPTER_CONFIG) if is_merged else (ADAPTER_CONFIG, MODEL)
    message = request.message or f"Add {request.run.key} of dopsd"
    return hub.Upload(request.repo, files, *kinds, request.is_private, request.revision, message)


def _announce(upload: hub.Upload, is_dry: bool) -> None:
    """Log every file with its size, and where all of them go."""
    for name, size in upload.sizes.items():
        log(f"  {size:>14,}  {name}")
    if REPORT in upload.files:
        log(f"push: {REPORT} shows ten test problems with answers; --no-report leaves it out")
    visibility = "private" if upload.is_private else "PUBLIC"
    log(
        f"push: {'would upload' if is_dry else 'uploading'} {len(upload.files)} files,"
        f" {sum(upload.sizes.values()) / 1e6:.1f} MB, to {upload.repo} ({visibility}), branch"
        f" {upload.revision}, in one commit"
    )


def _send(upload: hub.Upload) -> str | None:
    address = hub.upload(upload)
    log(f"push: done: {address}" if address else f"push: {upload.repo} has all of it already")
    return address
