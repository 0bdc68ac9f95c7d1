"""`python -m genenv`: the command line, for systems without the `genenv` script on the path."""

from genenv.cli.app import main

if __name__ == "__main__":
    main()
