"""HTTP/1.1: connections, the parsing of requests, and what the connections of a listener share."""
