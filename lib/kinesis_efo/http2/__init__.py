"""HTTP/2 for aiobotocore: a session class on `h2` for calls that answer with an event stream, in bounded memory."""
