"""Jobs on Amazon EMR: packed, submitted, watched and stopped. Nothing here runs on the cluster; the command line relies on it."""
