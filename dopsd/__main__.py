"""Start `python -m dopsd` and `dopsd`, and report what fails while modules load in one line."""

import sys


def main() -> int:
    """Run the command line; return its exit status."""
    try:
        from dopsd.core.errors import DopsdError

        try:
            from dopsd.cli import main as command_line
        except DopsdError as error:  # of an algorithm or a task that an entry point brings
            sys.stderr.write(f"dopsd: {error}\n")
            return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("dopsd: interrupted; the same command continues\n")
        return 130
    return command_line.main()


if __name__ == "__main__":
    sys.exit(main())
