"""HTTP/2 for aiobotocore calls that return an event stream: a session class based on `h2` that uses a bounded amount of memory."""
