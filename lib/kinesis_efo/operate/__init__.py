"""What operators ask and change: checks, lag, leases, tailing. The command line prints it; nothing here does."""
