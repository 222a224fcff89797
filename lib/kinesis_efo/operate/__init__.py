"""Operations behind the command line: checks, lag, changes to leases, tailing. Nothing here prints."""
