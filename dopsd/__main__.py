"""Start `python -m dopsd` and `dopsd`, and report what fails while modules load in one line."""

import sys


def main() -> int:
    """Run the command line; return its exit status."""
    try:
        from dopsd.core.errors import DopsdError

        try:
            from dopsd.cli import main as command_line
        except DopsdError as error:  # of an algorithm or a task that an entry point brings
            sys.stderr.write(f"dopsd: {error.coded}\n")
            return error.exit_code
    except KeyboardInterrupt:
        # written out, since the interrupt may have come while the table of codes was loading
        sys.stderr.write("dopsd: interrupted; the same command continues (D501)\n")
        return 130
    return command_line.main()


if __name__ == "__main__":
    sys.exit(main())
