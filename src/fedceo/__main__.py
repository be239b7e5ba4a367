"""`python -m fedceo` is the same as `fedceo`."""

from fedceo.cli import main

if __name__ == "__main__":
    main()
