"""The scoring child: loads base and candidate, scores every item, writes a file. No network, no secrets."""
