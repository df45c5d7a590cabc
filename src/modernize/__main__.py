"""`python -m modernize` is the same as `modernize`."""

from modernize.cli import main

if __name__ == "__main__":
    main()
