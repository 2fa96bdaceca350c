"""Checks that this machine has the code that a plan was written with."""

from collections.abc import Collection, Mapping

from lra.cluster.plan import StoredPlan
from lra.composition.class_path import named_plugins
from lra.runners.storage.fingerprint import changes, source_digest, summary
from lra.sweep.identity import version
from lra.version import lra_version

MOST_NAMED = 5


class OtherCode(RuntimeError):
    """A plan was written with different sources, or another version of PyTorch."""


def here(sources: Mapping[str, str]) -> dict[str, str]:
    """Return the hashes that the modules in `sources` have here; missing modules are excluded."""
    digests = {name: source_digest(name) for name in sources}
    return {name: digest for name, digest in digests.items() if digest is not None}


def known_sources(sources: Mapping[str, str], plugins: Collection[str]) -> dict[str, str]:
    """Return `sources` without plug-ins that the plan names and this command does not."""
    unnamed_plugins = set(plugins) - set(named_plugins())
    return {
        name: value
        for name, value in sources.items()
        if name.partition(".")[0] not in unnamed_plugins
    }


def is_current(sources: Mapping[str, str]) -> bool:
    """Return whether all modules in `sources` exist here with these hashes."""
    return here(sources) == dict(sources)


def check(plan: StoredPlan) -> None:
    """Raise `OtherCode` if this machine has other sources, or another PyTorch, than the plan."""
    planned = known_sources(plan.head["sources"], plan.head.get("plugins", ()))
    ours = here(planned)
    versions = plan.head["versions"]
    torch = version("torch")
    way_out = "install that version here, or rerun the `lra submit` command with this one"
    if planned != ours:
        differing = changes(planned, ours)
        more = len(differing) - MOST_NAMED
        listed = ", ".join(differing[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
        raise OtherCode(
            f"the plan of {plan.sweep} was made with lra {versions['lra']}, code "
            f"{summary(dict(sorted(planned.items())))}, but here is lra {lra_version()}, code "
            f"{summary(dict(sorted(ours.items())))}; these modules differ: "
            f"{listed}. This worker ran nothing: {way_out}"
        )
    if versions["torch"] != torch:
        raise OtherCode(
            f"the plan of {plan.sweep} was made with torch {versions['torch']}, but here is torch "
            f"{torch}, and one table must not mix rows of both versions. This worker ran "
            f"nothing: {way_out}"
        )
