"""One run per key, whoever creates it: processes on several machines may ask for the same key at once.

A tracking store has no "create unless it is there". Searching and then creating lets two processes that search
together create two runs, and start times of two machines do not say which was first. Here each creator
announces itself by its run, then takes a ticket one above all it sees (Lamport's bakery), and waits until every
announced run has one. The lowest ticket is the run of that key for everybody; the others are deleted by those
who created them, empty, or superseded where the server lets them write only.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from turnscale.errors import TrackingError
from turnscale.track.refusal import FORBIDDEN
from turnscale.track.retry import insist

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run as StoredRun

ORIGIN = "turnscale.origin"
"""Tag of an imported run: the id it has in the store it was made in, which its records and tables name."""
IMPORTED = "turnscale.imported"
"""Tag of an imported run that is whole: the digest of what was imported."""
TICKET = "turnscale.ticket"
"""Tag of a run that its key was settled on."""
CLAIMANT = "turnscale.claimant"
"""Tag of a new run by which its creator knows it again when the store's answer was lost."""
SUPERSEDED = "turnscale.superseded"
"""Tag of a run that is not read: the id of the one that is."""

SETTLE = 60.0
"""Seconds after which a creator that took no ticket is taken for dead."""
POLL = 0.2
"""Seconds between looks at the others' tickets."""


def claim(
    client: MlflowClient,
    experiment: str,
    key: str,
    name: str,
    start_time: int | None = None,
    tags: Mapping[str, str] | None = None,
) -> tuple[StoredRun, bool]:
    """The run of a key: found, or created if there is none.

    Args:
        client, experiment: the store.
        key: the tag ``turnscale.key``.
        name: name of a new run.
        start_time: of a new run, in ms since the epoch; now if None.
        tags: further tags of a new run, there from its first moment.

    Returns:
        The run, and whether this call created it.

    Raises:
        TrackingError: the store refuses.
    """
    mine: str | None = None
    patience = time.monotonic() + SETTLE
    while True:
        runs = insist(lambda: find(client, experiment, key), "look up the run")
        if not runs:
            mine = _announce(client, experiment, key, name, start_time, tags or {})
            continue
        tickets = {run.info.run_id: _ticket(run) for run in runs}
        silent = [run_id for run_id, ticket in tickets.items() if ticket is None]
        if mine is not None and mine in silent:
            highest = max((ticket for ticket in tickets.values() if ticket is not None), default=0)
            _mark(client, mine, TICKET, str(highest + 1))
            continue
        if silent and time.monotonic() < patience:
            time.sleep(POLL)
            continue
        if len(silent) == len(runs):  # all their creators are dead: go on with the oldest
            _mark(client, silent[0], TICKET, "1")
            continue
        settled = [run for run in runs if run.info.run_id not in silent]
        chosen = min(settled, key=lambda run: tickets[run.info.run_id] or 0)
        for run in runs:
            if run.info.run_id not in (mine, chosen.info.run_id):  # its creator removes it, unless it is dead
                _supersede(client, run.info.run_id, chosen.info.run_id)
        if mine is not None and mine != chosen.info.run_id:
            _remove(client, mine, chosen.info.run_id)
        return chosen, chosen.info.run_id == mine


def find(client: MlflowClient, experiment: str, key: str) -> list[StoredRun]:
    """Runs of that key that are neither superseded nor deleted, oldest first."""
    found = client.search_runs([experiment], filter_string=f"tags.`turnscale.key` = '{key}'")
    live = [run for run in found if SUPERSEDED not in run.data.tags]
    return sorted(live, key=lambda run: (run.info.start_time, run.info.run_id))


def _announce(
    client: MlflowClient,
    experiment: str,
    key: str,
    name: str,
    start_time: int | None,
    tags: Mapping[str, str],
) -> str:
    start = int(time.time() * 1000) if start_time is None else start_time
    marks = {**tags, "turnscale.key": key, CLAIMANT: uuid.uuid4().hex}
    tries = 0

    def create() -> str:
        nonlocal tries
        tries += 1
        if tries > 1:  # a try whose answer was lost may have made it
            for run in find(client, experiment, key):
                if run.data.tags.get(CLAIMANT) == marks[CLAIMANT]:
                    return str(run.info.run_id)
        created = client.create_run(experiment, start_time=start, tags=marks, run_name=name)
        return str(created.info.run_id)

    return insist(create, "create the run")


def _ticket(run: StoredRun) -> int | None:
    """The run's ticket, 0 if it was opened before tickets were, None if its creator has not taken one yet."""
    ticket = run.data.tags.get(TICKET)
    if ticket is not None:
        return int(ticket)
    return 0 if "turnscale.attempt" in run.data.tags else None


def _supersede(client: MlflowClient, run_id: str, by: str) -> None:
    _mark(client, run_id, SUPERSEDED, by)
    _unless_gone(client, run_id, lambda run_id: client.set_terminated(run_id, "KILLED"), "close a run")


def _remove(client: MlflowClient, run_id: str, by: str) -> None:
    """Delete an empty run of one's own; a server that lets this user write but not delete has it superseded."""
    try:
        _unless_gone(client, run_id, lambda run_id: client.delete_run(run_id), "remove an empty run")
    except TrackingError as error:
        if error.reason != FORBIDDEN:
            raise
        _supersede(client, run_id, by)


def _mark(client: MlflowClient, run_id: str, name: str, value: str) -> None:
    _unless_gone(client, run_id, lambda run_id: client.set_tag(run_id, name, value), "set a tag")


def _unless_gone(client: MlflowClient, run_id: str, action: Callable[[str], object], what: str) -> None:
    """Do something to a run that its creator may remove at any moment; a removed one needs nothing more."""
    try:
        insist(lambda: action(run_id), what)
    except TrackingError:
        if insist(lambda: client.get_run(run_id), "look up the run").info.lifecycle_stage != "deleted":
            raise
