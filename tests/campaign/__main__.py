"""`python -m tests.campaign`: faults at random, applied and counted; figures at the end.

One part alone is asked for with --only. Without --out, a temporary folder is used.
"""

import argparse
import importlib
import os
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.campaign import published, shim
from tests.campaign.part import Found, LeftOut, Settings
from tests.campaign.sweeps import SHARED

PARTS = ("disk", "calls", "torn")


def main(argv: list[str] | None = None) -> int:
    """Run the parts that are asked for; return 0 where nothing is wrong."""
    chosen = arguments().parse_args(argv)
    if chosen.publish:
        written = published.publish(chosen.out or published.KEPT.parent, chosen.publish)
        print(f"{chosen.publish}: the table of {written} parts")
        return 0
    out = chosen.out or Path(tempfile.mkdtemp(prefix="lra-campaign-out-"))
    out.mkdir(parents=True, exist_ok=True)
    os.environ["LRA_DATA"] = str(out / "data")
    shim.preload(out)
    shutil.rmtree(out / SHARED, ignore_errors=True)
    print(f"seed {chosen.seed}; what happens lies in {out}", flush=True)
    found = []
    for name in chosen.only or PARTS:
        found.append(_one(name, chosen, out))
    table = published.table(found)
    kept = published.keep(found, out)
    print(f"\n{table}\n\nfigures {kept}")
    wrong = [f"{each.part}: {sentence}" for each in found for sentence in each.wrong]
    for sentence in wrong:
        print(f"WRONG {sentence}")
    print(f"{sum(each.checks for each in found):,} checks, {len(wrong)} of them wrong")
    return int(bool(wrong))


def _one(name: str, chosen: argparse.Namespace, out: Path) -> Found:
    """Run a part."""
    folder = out / name
    asked = {key: getattr(chosen, key) for key in ("seed", "cases", "short")}
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    begun = time.monotonic()

    def say(text: str) -> None:
        print(f"{name} {time.monotonic() - begun:6.0f} s  {text}", flush=True)

    module = importlib.import_module(f"tests.campaign.{name}")
    say(module.ABOUT)
    try:
        found = module.run(Settings(folder=folder, say=say, **asked))
    except LeftOut as reason:
        found = Found(name, left_out=str(reason))
        say(f"left out: {reason}")
    except Exception:  # noqa: BLE001 - the other parts are to run, and this one is wrong
        found = Found(name, wrong=[traceback.format_exc()])
    found.settings, found.seconds = asked, round(time.monotonic() - begun, 1)
    say(f"{sum(found.faults.values()):,} faults, {found.checks:,} checks, {len(found.wrong)} wrong")
    if not found.wrong:
        shutil.rmtree(folder, ignore_errors=True)
    return found


def arguments() -> argparse.ArgumentParser:
    """Return what reads the words behind `python -m tests.campaign`."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    parser.add_argument("--only", action="append", choices=PARTS, help="this part; may be repeated")
    parser.add_argument("--cases", type=int, default=400, help="of each generated kind")
    parser.add_argument("--seed", type=int, default=0, help="of everything that is drawn")
    parser.add_argument("--out", type=Path, help="folder for what happens and the figures")
    parser.add_argument("--short", action="store_true", help="few faults of each kind: a minute")
    parser.add_argument("--publish", type=Path, metavar="PAGE", help="write the figures into PAGE")
    return parser


if __name__ == "__main__":
    sys.exit(main())
