"""The operations behind the command line: checks, lag, lease changes, tailing. They return results and do not print."""
