"""The entry point of the command `tamis` and of `python -m tamis`."""

import sys


def main() -> int:
    """Run the command line and return its exit code; Ctrl-C during the imports prints no traceback."""
    try:
        from tamis.cli import main as command

        return command()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
