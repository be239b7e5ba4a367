"""`python -m fedceo` is the same as `fedceo`."""

from fedceo.cli.app import main

if __name__ == "__main__":
    main()
