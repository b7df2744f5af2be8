"""The entry point of the command `tamis` and of `python -m tamis`."""

import atexit
import gc
import os
import sys

_IMPORTED_OBJECTS = 100_000
"""Objects created between two garbage collections. Imports create about as many, and nearly all of them stay."""


def main() -> int:
    """Run the command line and exit; Ctrl-C during the imports prints no traceback."""
    try:
        gc.set_threshold(_IMPORTED_OBJECTS)
        starts_workers = _starts_workers(sys.argv[1:])
        if starts_workers:
            _import_what_workers_need()
        from tamis.executors.forkserver import launched

        with launched(starts_workers, fork=True):  # the server imports more while this process does
            from tamis.cli import main as command

            code = command()
    except KeyboardInterrupt:
        return 130
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # unloading the libraries would take as long as a small job


def _import_what_workers_need() -> None:
    """Import what the driver and the workers both need, before the server is forked, so that it is imported once."""
    from tamis.executors.forkserver import worker_environment

    os.environ.update(worker_environment())  # read by the libraries when they are loaded
    import yaml  # by numba, for its settings  # noqa: F401

    import tamis.executors.worker_process
    import tamis.sinks.tables
    import tamis.sources.tables
    import tamis.text.quality  # noqa: F401


def _starts_workers(arguments: list[str]) -> bool:
    return arguments[:1] in (["run"], ["rethreshold"]) and not {"-h", "--help", "inline", "ray", "dask"} & set(
        arguments
    )


if __name__ == "__main__":
    sys.exit(main())
