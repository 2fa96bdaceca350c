"""Count the passes of the presets of the Long Range Arena for `lra/sweep/preset_counts.json`.

    LRA_DATA=/tmp/nodata python tests/benchmarks/preset_counts.py

takes a minute or two. The presets are those of the paper's tables and figure, on CPU and GPU;
what is counted does not depend on which.
"""

import json

from lra.composition.hydra_entry import entries
from lra.sweep.cell_list import build
from lra.sweep.costs import Costs
from lra.sweep.forecast import Forecaster
from lra.sweep.preset_counts import FILE

PRESETS = ("lra_table1", "lra_table2", "lra_figure3", "lra_nystrom")
HARDWARE = ("cpu", "h100")


def main() -> None:
    """Write the file anew."""
    costs = Costs()
    forecaster = Forecaster((), costs)
    for preset in PRESETS:
        for hardware in HARDWARE:
            words = ["-m", f"+experiment={preset}", f"hardware={hardware}"]
            words += ["seed=0"] if preset == "lra_table1" else []
            for planned in build(entries(words), elsewhere=True).planned:
                print(planned.cell.columns["model"], forecaster.of(planned).reason)
    lines = [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in sorted(costs.counted().items())]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
