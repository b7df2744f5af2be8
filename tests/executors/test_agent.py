"""Agents on the nodes of a cluster."""

import pytest

from tamis.errors import WorkerError
from tamis.executors.agent import AgentSettings, run_agent


def test_an_agent_of_another_version_does_not_start():
    with pytest.raises(WorkerError, match=r"tamis \S+ is installed there, and tamis 0.0.0 on the driver"):
        run_agent(AgentSettings(("127.0.0.1", 1), b"token", "node", version="0.0.0"))
