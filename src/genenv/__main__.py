"""`python -m genenv`: the command line where its script is not on the path."""

from genenv.cli.app import main

if __name__ == "__main__":
    main()
