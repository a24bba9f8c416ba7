"""The errors that a user can cause or mend, each with the exit code of its kind."""


class AweighError(Exception):
    """A failure with a message (what was given, what is allowed, why) and a hint (what to do)."""

    code = "error"
    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message


class UsageError(AweighError):
    """A command or option that does not make sense."""

    code = "usage"
    exit_code = 2


class DataError(AweighError):
    """Data that cannot be clustered as asked."""

    code = "data"
    exit_code = 3


class StorageError(AweighError):
    """Bytes that are missing, torn, refused or that no longer fit on the disk."""

    code = "storage"
    exit_code = 6


class BusyError(AweighError):
    """Another process holds the lock."""

    code = "busy"
    exit_code = 75


class ConflictError(BusyError):
    """Another process replaced the same object first."""
