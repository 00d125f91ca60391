"""HTTP/1.1: the request parser, the connection, and the endpoint that connections share."""
