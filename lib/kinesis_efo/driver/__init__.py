"""What a program calls on the driver: reading, the job, its stop, the listener, the fetchers of a cluster."""
