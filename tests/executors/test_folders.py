"""Folders of processes on one machine: what a killed process leaves behind is removed by the next one."""

import subprocess
import sys

from tamis.executors.folders import disk_folder

HOLD = """
import sys
from pathlib import Path
from tamis.executors.folders import disk_folder
with disk_folder(Path(sys.argv[1])) as folder:
    (folder / "packet").touch()
    print(folder.name, flush=True)
    sys.stdin.read()
"""


def hold(root):
    """Start a process that has a folder; returns it and the name of the folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    return process, process.stdout.readline().strip()


def test_only_the_folders_of_processes_that_have_ended_are_removed(tmp_path):
    (tmp_path / "tamis-agent-being-made").mkdir()
    killed, first = hold(tmp_path)
    killed.kill()
    with killed, disk_folder(tmp_path / "other"):
        killed.wait()
        assert (tmp_path / first / "packet").exists()
    running, second = hold(tmp_path)
    with running, disk_folder(tmp_path) as folder:
        assert {path.name for path in tmp_path.glob("tamis-*")} == {"tamis-agent-being-made", second, folder.name}
        assert not (tmp_path / first).exists()
        running.stdin.close()
        running.wait()
    assert {path.name for path in tmp_path.glob("tamis-*")} == {"tamis-agent-being-made"}
