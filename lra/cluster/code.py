"""Whether the code here is the code that a plan was written with."""

from collections.abc import Collection, Mapping

from lra.cluster.plan import StoredPlan
from lra.composition.class_path import named_plugins
from lra.runners.storage.fingerprint import changes, source_digest, summary
from lra.sweep.identity import version
from lra.version import lra_version

MOST_NAMED = 5


class OtherCode(RuntimeError):
    """A plan was written with other sources, or another torch; nothing was run."""


def here(sources: Mapping[str, str]) -> dict[str, str]:
    """Return the hashes that modules have on this path; one that is not here is left out."""
    digests = {name: source_digest(name) for name in sources}
    return {name: digest for name, digest in digests.items() if digest is not None}


def known_sources(sources: Mapping[str, str], plugins: Collection[str]) -> dict[str, str]:
    """Return the hashes of sources without those of packages that were not named here."""
    unnamed = set(plugins) - set(named_plugins())
    return {name: value for name, value in sources.items() if name.partition(".")[0] not in unnamed}


def is_current(sources: Mapping[str, str]) -> bool:
    """Tell whether all these sources are here, unchanged."""
    return here(sources) == dict(sources)


def check(plan: StoredPlan) -> None:
    """Raise `OtherCode` where the cells of a plan would be run by other code than it names."""
    planned = known_sources(plan.head["sources"], plan.head.get("plugins", ()))
    ours = here(planned)
    versions = plan.head["versions"]
    torch = version("torch")
    again = "install that version here, or rerun the `lra submit` command with this one"
    if planned != ours:
        differing = changes(planned, ours)
        more = len(differing) - MOST_NAMED
        named = ", ".join(differing[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
        raise OtherCode(
            f"the plan of {plan.sweep} was made with lra {versions['lra']}, code "
            f"{summary(dict(sorted(planned.items())))}, and this is lra {lra_version()}, code "
            f"{summary(dict(sorted(ours.items())))}: {named}. This worker ran nothing: {again}"
        )
    if versions["torch"] != torch:
        raise OtherCode(
            f"the plan of {plan.sweep} was made with torch {versions['torch']}, and this is torch "
            f"{torch}: rows of both versions would be mixed in one table. This worker ran "
            f"nothing: {again}"
        )
