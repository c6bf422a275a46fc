"""`python -m dopsd`, and the program `dopsd`: an interrupt while modules are still loading ends it in one line as well."""

import sys


def main() -> int:
    """Run the command line; its exit status."""
    try:
        from dopsd import cli
    except KeyboardInterrupt:
        sys.stderr.write("dopsd: interrupted; the same command continues\n")
        return 130
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
