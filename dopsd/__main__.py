"""`python -m dopsd`, and the program `dopsd`: an interrupt while modules are still loading ends it in one line as well."""

import sys


def main() -> int:
    """Run the command line; its exit status."""
    try:
        from dopsd.cli import main as command_line
    except KeyboardInterrupt:
        sys.stderr.write("dopsd: interrupted; the same command continues\n")
        return 130
    return command_line.main()


if __name__ == "__main__":
    sys.exit(main())
