"""The command line: parse, call, print. One module per command group."""
