"""`dopsd params --set`: the file keeps its layout, and reads as what was set."""

import codecs
import errno
import stat
from pathlib import Path

import pytest
from conftest import ROOT

from dopsd.cli.main import main
from dopsd.config import params_file
from dopsd.config.loading import load_params
from dopsd.config.params import Params
from dopsd.core.errors import DopsdError
from dopsd.training.pretraining.config import Distilling

SHIPPED = (ROOT / "params.yaml").read_text()
FILE = Path("params.yaml")


@pytest.fixture(autouse=True)
def _in_a_folder_with_the_shipped_params(here):
    FILE.write_text(SHIPPED)


def set_to(value: str) -> Params:
    assert main(["params", "--set", value]) == 0
    return load_params()


@pytest.mark.parametrize(
    ("full", "empty", "line"),
    [
        ("ablate.run=[default, jsd]", "ablate.run=[]", "  run: [default, jsd] # variants that"),
        (
            "method.d_opsd.train={learning_rate: 0.01}",
            "method.d_opsd.train={}",
            "    train: {learning_rate: 0.01} # overrides of",
        ),
    ],
)
def test_an_empty_value_is_filled_and_emptied_on_its_line(full, empty, line):
    set_to(full)
    assert line in FILE.read_text()
    set_to(empty)
    assert load_params().model_dump() == load_params(ROOT / "params.yaml").model_dump()
    written, shipped = (text.splitlines() for text in (FILE.read_text(), SHIPPED))
    assert [line.split() for line in written] == [line.split() for line in shipped]


def test_a_list_that_an_older_release_wrote_over_several_lines_can_be_emptied():
    before, _, after = SHIPPED.partition("  run: [] ")
    comment, rest = after.split("\n", 1)
    FILE.write_text(f"{before}  run:    {comment}\n  - default\n  - jsd\n{rest}")
    assert set_to("matrix.seeds=[7]").ablate.run == ["default", "jsd"]
    assert set_to("ablate.run=[]").ablate.run == []


def test_a_section_that_may_be_null_is_set_to_its_defaults():
    assert set_to("train.updates=7").adapt.distill is None
    assert set_to("adapt.distill={}").adapt.distill == Distilling()


def test_a_list_in_place_of_nothing_is_on_one_line():
    set_to("train.lora.targets=[up_proj]")
    set_to("method.rft.train.betas=[0.9, 0.95]")
    assert "betas: [0.9, 0.95]" in FILE.read_text()


def test_settings_that_the_file_would_not_give_back_leave_it_as_it_was(monkeypatch):
    monkeypatch.setattr("dopsd.config.layout._edited", lambda _text, _raw: "train: {}\n")
    with pytest.raises(DopsdError, match="would not be read back as they are"):
        params_file.params(None, "reference", "1x80gb", ["train.updates=7"], FILE)
    assert FILE.read_text() == SHIPPED


@pytest.mark.parametrize("kind", ["file", "link", "link to a link", "hard link"])
def test_a_file_keeps_its_links_its_mode_and_its_line_ends(kind):
    shared = Path("shared/settings.yaml")
    shared.parent.mkdir()
    shared.write_bytes(codecs.BOM_UTF8 + SHIPPED.replace("\n", "\r\n").encode())
    shared.chmod(0o640)
    FILE.unlink()
    if kind == "hard link":
        FILE.hardlink_to(shared)
    elif kind == "file":
        shared = shared.rename(FILE)
    else:
        Path("other.yaml").symlink_to(shared)
        FILE.symlink_to("other.yaml" if kind == "link to a link" else shared)
    for updates in (9, 8):
        set_to(f"train.updates={updates}")
        old, new = SHIPPED.replace("\n", "\r\n").splitlines(), shared.read_bytes().decode()
        changed = [line for line in new.removeprefix("\ufeff").splitlines() if line not in old]
        assert [line.split("#")[0].split() for line in changed] == [["updates:", str(updates)]]
        assert new.startswith("\ufeff") and new.count("\n") == new.count("\r\n") == len(old)
        assert FILE.is_symlink() == kind.startswith("link") and FILE.samefile(shared)
        assert {stat.S_IMODE(p.stat().st_mode) for p in (FILE, params_file.BEFORE)} == {0o640}
    assert [p.name for p in shared.parent.glob(".*")] == []


def test_a_file_that_a_container_mounts_alone_is_written_in_place(monkeypatch):
    def busy(path: Path, target: Path) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy")

    monkeypatch.setattr(Path, "rename", busy)
    assert set_to("train.updates=9").train.updates == 9
    assert not [*Path().glob(".*")]
