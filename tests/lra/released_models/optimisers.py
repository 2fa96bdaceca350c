"""Store what the optimisers of the S4 code do: which parameters decay, at which rates they learn.

    python -P tests/lra/released_models/optimisers.py s4 CHECKOUT LIBRARIES

Arguments are those of `frames.py`. Each optimiser and its scheduler are what the trainer's own
`configure_optimizers` makes. Of the layers, which are alike, the first stands for all.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import cases  # noqa: E402
import trainers  # noqa: E402
from frames import DIAGONAL, numbered  # noqa: E402

SAMPLES = 40
"""Updates whose rates are stored, besides those around the warm-up's end."""
FILE = HERE / "optimisers.json"


def groups(module: Any, optimiser: Any, peak: float) -> dict[str, list[float]]:
    """Return multiples of the peak rate and decay by name, of the first layers of a period."""
    names = {id(parameter): numbered(name) for name, parameter in module.named_parameters()}
    every = {
        names[id(parameter)]: [group.get("initial_lr", group["lr"]) / peak, group["weight_decay"]]
        for group in optimiser.param_groups for parameter in group["params"]
    }  # fmt: skip
    period = 2 if any(".layer.ff." in name for name in every) else 1
    for name, found in every.items():
        first = re.sub(r"layers\.(\d+)", lambda m: f"layers.{int(m[1]) % period}", name)
        if every[first] != found:
            raise ValueError(f"{name} is not treated as {first} is")
    later = re.compile(rf"layers\.(?!(?:{'|'.join(map(str, range(period)))})\.)")
    return {name: found for name, found in sorted(every.items()) if not later.search(name)}


def rates(scheduler: Any, settings: Any) -> dict[str, float]:
    """Return multiples of the peak rate by update, as the trainer steps after each."""
    warmup = settings.get("num_warmup_steps", 0)
    last = settings.get("num_training_steps", 10 * warmup) - 1
    chosen = {*range(3), *range(warmup - 2, warmup + 3), last - 1, last}
    chosen |= {last * number // SAMPLES for number in range(SAMPLES)}
    return {str(update): scheduler.lr_lambdas[0](update) for update in sorted(chosen)}


def stored(protocol: str, task: str, checkout: Path, words: list[str]) -> dict[str, Any]:
    """Return what the optimiser of a task does."""
    module = trainers.trainer(protocol, task, checkout, words)
    peak = module.hparams.optimizer.lr
    (optimiser,), (scheduled,) = module.configure_optimizers()
    found: dict[str, Any] = {"parameters": groups(module, optimiser, peak), "peak": peak}
    if "num_warmup_steps" in module.hparams.scheduler:
        if scheduled["interval"] != "step":
            raise ValueError(f"stepped by {scheduled['interval']}")
        found["rates"] = rates(scheduled["scheduler"], module.hparams.scheduler)
    return found


def main(protocol: str, checkout: Path, libraries: Path) -> None:
    """Store the optimisers of every task."""
    trainers.enter(checkout, libraries)
    found = json.loads(FILE.read_text()) if FILE.exists() else {}
    words = cases.S4D if protocol == "s4d" else []
    for task in trainers.tasks(protocol, checkout):
        found[f"{protocol} {task}"] = stored(protocol, task, checkout, words)
        if protocol in DIAGONAL:
            more = DIAGONAL[protocol]
            found[f"{protocol} {task} diagonal"] = stored(protocol, task, checkout, more)
    lines = [
        f"{json.dumps(case)}: {json.dumps(found[case], sort_keys=True)}" for case in sorted(found)
    ]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
