"""Slips that mypy must name: an ignored error that is none is an error of `make types`."""

import lra

lra.run(model="linear").exit_cod  # type: ignore[attr-defined]
lra.run(model="linear").rows(3)  # type: ignore[operator]
row: lra.Row = {"valu": 1.0}  # type: ignore[typeddict-item]
lra.choose("long")  # type: ignore[arg-type]
lra.task("listops").batchez  # type: ignore[attr-defined]
lra.verify("linear").failed[0].chek  # type: ignore[attr-defined]
lra.table(lra.rows()).to_latec()  # type: ignore[attr-defined]
lra.search("", params={}).chosen.choice  # type: ignore[attr-defined]
