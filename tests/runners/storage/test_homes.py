"""For which folder a claim was written: copies, moves, other machines, notes of older versions."""

import json
import os
import shutil
from pathlib import Path

import pytest

from lra.runners.storage import claims, homes, mounts
from lra.runners.storage.claims import Observer, is_stale, strangers, take_claim
from lra.runners.storage.homes import Home, mount_view
from lra.runners.store import Store

KEY = "3f" * 8


@pytest.fixture
def held(tmp_path: Path):
    """A store in which this process holds a claim."""
    store = Store(tmp_path / "original")
    claim = store.claim(KEY, worker="one")
    assert claim is not None
    with claim:
        yield store


def seen_from_elsewhere(root: Path, **changed: object) -> None:
    """Make a claim one that a process of another machine holds, as fresh as it is."""
    path = root / "claims" / KEY
    told = json.loads(path.read_text())
    told["place"] = told["home"]["view"] = "another boot mnt:[1]"
    told["home"] |= changed
    path.write_text(json.dumps(told))


COPIES = {
    "cp": lambda source, target: shutil.copytree(source, target, copy_function=shutil.copyfile),
    "cp -a": shutil.copytree,
    "mv": lambda source, target: source.rename(target),
}


@pytest.mark.parametrize("how", COPIES)
def test_a_copied_claim_holds_nothing_and_that_of_the_original_goes_on(
    how: str, held: Store, tmp_path: Path
) -> None:
    copy = Store(tmp_path / "copy")
    COPIES[how](held.root, copy.root)
    assert copy.claims() == {}
    assert is_stale(copy.root / "claims" / KEY)
    (sentence,) = strangers(copy.root / "claims", remove=False)
    assert str(held.root) in sentence
    with copy.claim(KEY) as own:  # type: ignore[union-attr]
        assert own is not None
        assert [*copy.claims()] == [KEY]
        assert strangers(copy.root / "claims", remove=True) == []
    if how != "mv":
        assert [*held.claims()] == [KEY]
        assert held.claim(KEY) is None


def test_claims_of_another_folder_go_when_somebody_asks_for_it(held: Store, tmp_path: Path) -> None:
    shutil.copytree(held.root, tmp_path / "copy")
    copy = Store(tmp_path / "copy")
    assert len(copy.strangers(remove=True)) == 1
    assert copy.strangers(remove=True) == []
    assert held.strangers(remove=True) == []
    assert [*held.claims()] == [KEY]


def test_a_link_is_the_folder_and_a_folder_that_came_back_is_it_again(
    held: Store, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(held.root)
    assert [*Store(tmp_path / "link").claims()] == [KEY]
    held.root.rename(tmp_path / "away")
    (tmp_path / "away").rename(held.root)
    assert [*held.claims()] == [KEY]


def test_a_backup_in_place_is_the_folder_for_those_who_work_there(
    held: Store, tmp_path: Path
) -> None:
    shutil.copytree(held.root, tmp_path / "backup")
    shutil.rmtree(held.root)
    shutil.copytree(tmp_path / "backup", held.root)
    assert [*held.claims()] == [KEY]


def test_from_another_machine_the_inode_tells(held: Store, tmp_path: Path) -> None:
    """Its paths, and the numbers of its devices, mean nothing here."""
    seen_from_elsewhere(held.root, path="/mnt/of/another/results/claims")
    assert [*held.claims()] == [KEY]
    assert held.claim(KEY) is None
    shutil.copytree(held.root, tmp_path / "copy")
    assert Store(tmp_path / "copy").claims() == {}
    assert Store(tmp_path / "copy").claim(KEY) is not None


def test_where_inodes_are_any_only_signs_of_life_count(
    held: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen_from_elsewhere(held.root, inode=1)
    assert held.claims() == {}
    table = tmp_path / "mounts"
    table.write_text("20 1 8:1 / / rw - fuse.sshfs host:/ rw\n")
    monkeypatch.setattr(homes, "mount_of", lambda folder: mounts.mount_of(folder, table))
    assert [*held.claims()] == [KEY]
    later = Observer(server=claims.ServerClock(ask=lambda _: 1e12))
    assert later.left_behind(held.root / "claims" / KEY) is not None


@pytest.mark.parametrize(("kind", "same"), [("nfs4", True), ("btrfs", False)])
def test_one_inode_on_two_devices_is_one_folder_of_a_server_or_a_snapshot(
    kind: str, same: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home.from_folder(tmp_path)
    seen = tmp_path.stat()
    other = os.stat_result((seen.st_mode, seen.st_ino, seen.st_dev + 1, *[0] * 7))
    monkeypatch.setattr(homes, "_stat", lambda _: other)
    monkeypatch.setattr(homes, "mount_of", lambda _: mounts.Mount(kind, "/"))
    assert home.is_(tmp_path) is same


def test_a_home_that_may_not_be_looked_at_is_told_by_its_inode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home.from_folder(tmp_path)

    def refuse(_: str) -> None:
        raise PermissionError

    monkeypatch.setattr(homes, "_stat", refuse)
    assert home.is_(tmp_path)
    assert not home._replace(inode=-1).is_(tmp_path)
    assert not Home.from_folder(tmp_path).is_strange(tmp_path / "gone")


@pytest.mark.parametrize("told", [None, 3, {}, {"path": 1, "inode": 2}, {"path": "a\0", "inode": 2},
                                  {"path": "/a", "inode": True}])  # fmt: skip
def test_a_claim_without_a_home_is_judged_as_before(told: object, tmp_path: Path) -> None:
    claim = take_claim(tmp_path / KEY)
    assert claim is not None
    content = json.loads(claim.path.read_text())
    claim.path.write_text(json.dumps({**content, "home": told}))
    assert take_claim(tmp_path / KEY) is None


def test_a_folder_whose_name_is_no_text_is_told_by_its_inode(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    folder.mkdir()
    home = Home.from_folder(folder)
    assert (home.path, home.view) == ("", "")
    assert home.is_(folder)
    assert Home.of_note(json.loads(json.dumps(home.plain()))) == home
    assert mount_view()
