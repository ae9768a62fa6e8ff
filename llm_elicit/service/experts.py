"""The connections to the journals of runs that people judge, one for each run."""

from __future__ import annotations

import threading

from llm_elicit.orchestrator.people import People
from llm_elicit.pipeline.run_folder import Run


class Experts:
    """The runs of a service that people judge, opened when the first expert comes.

    Its methods block; the service calls them in threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, People] = {}

    def of(self, run: Run) -> People:
        """Return what gives a run's questions to people.

        Raises:
            InputError: the journal cannot be written.
        """
        with self._lock:
            known = self._open.get(run.campaign.name)
            if known is None:
                known = People(run.location, run.campaign, run.space, run.plan)
                self._open[run.campaign.name] = known
            return known

    def forget(self, name: str) -> None:
        """Close the journal of a run that is deleted."""
        with self._lock:
            known = self._open.pop(name, None)
        if known is not None:
            known.close()

    def close(self) -> None:
        """Close all journals."""
        for name in list(self._open):
            self.forget(name)
