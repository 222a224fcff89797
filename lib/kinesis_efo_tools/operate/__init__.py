"""The operations of the command line: checks, lag, changes to leases, tailing. They do not print."""
