"""What can go wrong for a user; every message says what was asked, what was found and what to do."""


class StagingError(RuntimeError):
    """The parent of the errors below, for callers that catch them together."""


class BackendUnavailableError(StagingError):
    """No backend proved itself on the device that was asked for; the text is `explain()`'s."""


class SlotInUseError(StagingError):
    """A publish found its next slot still leased or fenced; nothing was rotated, so it can be retried."""


class MemoryLimitError(StagingError):
    """An allocation would pass the manager's `limit_bytes`; nothing was allocated."""


class ConcurrentUseError(StagingError):
    """A second call came while another one was in progress on the same object."""


class ClosedError(StagingError):
    """The manager was closed, or belongs to the process that this one was forked from."""


class DeviceLostError(StagingError):
    """An earlier CUDA error left the device unusable for this process; the first error is chained."""
