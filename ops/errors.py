"""How an operator's command fails; the sentence says what to do."""


class RefusedByPlatform(Exception):
    """The platform said no; the sentence is its own. Exit code 1."""


class Unreachable(Exception):
    """The platform cannot be found or does not answer. Exit code 3."""
