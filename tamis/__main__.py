"""The entry point of the command `tamis` and of `python -m tamis`."""

import atexit
import os
import sys


def main() -> int:
    """Run the command line and exit; Ctrl-C during the imports prints no traceback."""
    try:
        from tamis.executors.forkserver import launched

        with launched(_starts_workers(sys.argv[1:])):  # the server imports while this process does
            from tamis.cli import main as command

            code = command()
    except KeyboardInterrupt:
        return 130
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # unloading the libraries would take as long as a small job


def _starts_workers(arguments: list[str]) -> bool:
    return arguments[:1] == ["run"] and not {"-h", "--help", "inline"} & set(arguments)


if __name__ == "__main__":
    sys.exit(main())
