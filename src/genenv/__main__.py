"""`python -m genenv`: the command line where its script is not on the path."""

from genenv.cli.app import main

main()
