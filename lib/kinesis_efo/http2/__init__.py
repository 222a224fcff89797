"""HTTP/2 for aiobotocore: a session class based on `h2` for calls that return an event stream, in bounded memory."""
